"""Makes Triton's interpreter faster without changing its results."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
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
    patch_language, scope_class = interpreter._patch_lang, interpreter._LangPatchScope
    restore, replaced = scope_class.restore, set()

    @cache
    def languages(fn: Callable[..., Any]) -> frozenset[str]:
        modules = [each for each in fn.__globals__.values() if isinstance(each, ModuleType)]
        return frozenset(each.__name__ for each in modules if each in (tl, tl.core))

    def replace_once(fn: Callable[..., Any]) -> Any:
        if replaced and languages(fn) <= replaced:
            return scope_class()
        replaced.update(languages(fn))
        return patch_language(fn)

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
    keep_shapes(patch)
    builder = interpreter.interpreter_builder  # its overflow checks assert only in debug mode
    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))


def keep_shapes(patch: pytest.MonkeyPatch) -> None:
    """Make the types and shapes of blocks once, not for every value."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    shapes, blocks, make_block = {}, {}, core.block_type.with_element_ty
    broadcast = TritonSemantic.broadcast_impl_value

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        sizes = (*type.shape,) if type.is_block() else ()
        if sizes not in shapes:
            sized = core.tuple([core.constexpr(size) for size in sizes])
            shapes[sizes] = core.constexpr(prod(sizes)), sized
        self.numel, self.shape = shapes[sizes]

    def with_element_type(self: Any, scalar: Any) -> Any:
        key = (scalar.name, *self.shape)
        if key not in blocks:
            blocks[key] = make_block(self, scalar)
        return blocks[key]

    def broadcast_others(self: Any, left: Any, right: Any) -> Any:
        both = left.type.is_block() and right.type.is_block()
        if both and left.type.shape.values == right.type.shape.values:
            return left, right
        return broadcast(self, left, right)

    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast_others)
    patch.setattr(core.block_type, "to_ir", lambda self, _: self)
    patch.setattr(core.tensor, "__init__", init)
    patch.setattr(core.block_type, "with_element_ty", with_element_type)
