"""Makes Triton's interpreter faster without changing its results."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest


def patch_once(patch: pytest.MonkeyPatch) -> None:
    """Patch Triton's language once per kernel launch, and look up types of elements once.

    The interpreter patches all functions of the language when a kernel starts, and again for every
    function that the kernel calls, which takes most of its time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        return  # another version of the interpreter
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

    def restore_all(scope: Any) -> None:  # the kernel has ended
        replaced.clear()
        restore(scope)

    make_type, types = interpreter._get_np_dtype, {}

    def numpy_type(given: Any) -> Any:
        name = given.scalar.name
        if name not in types:
            types[name] = make_type(given)
        return types[name]

    patch.setattr(interpreter, "_get_np_dtype", numpy_type)
    patch.setattr(interpreter, "_patch_lang", replace_once)
    patch.setattr(scope_class, "restore", restore_all)
