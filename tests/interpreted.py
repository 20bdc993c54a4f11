"""Triton's interpreter, made quicker: what it computes stays as it is."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest


def patch_once(patch: pytest.MonkeyPatch) -> None:
    """The interpreter replaces the language's functions when a kernel starts and again, looking
    through all of them, whenever the kernel calls another function. Here those calls leave alone
    what has been replaced since the kernel started, which is most of the time they take."""
    import triton.language as tl
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        return  # an interpreter that does it in another way
    replace, scope_class = interpreter._patch_lang, interpreter._LangPatchScope
    restore, replaced = scope_class.restore, set()

    @cache
    def languages(fn: Callable[..., Any]) -> frozenset[str]:
        modules = [each for each in fn.__globals__.values() if isinstance(each, ModuleType)]
        return frozenset(each.__name__ for each in modules if each in (tl, tl.core))

    def replace_once(fn: Callable[..., Any]) -> Any:
        if replaced and languages(fn) <= replaced:
            return scope_class()
        replaced.update(languages(fn))
        return replace(fn)

    def restore_all(scope: Any) -> None:  # a kernel is over
        replaced.clear()
        restore(scope)

    patch.setattr(interpreter, "_patch_lang", replace_once)
    patch.setattr(scope_class, "restore", restore_all)
