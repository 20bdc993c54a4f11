"""Operations of transformers' modules that wait until their results are read, so that one launch
computes several of them, also across the borders of modules.

`Deferral` sees every call of a torch function while a step runs. Norms, residual adds and factors
of rows are only noted, as are rotations of queries and keys, and continued by the operation behind
them. Their results are tensors like any other, but not filled yet: whatever else touches their
memory, or that of their inputs, launches them first. What nothing refers to any more is never
computed. Every operation keeps its rounding, so waiting changes no bit.
"""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._pytree import tree_leaves

from graft.kernels.hook_triton import (
    Angles,
    CacheRows,
    Heads,
    Norm,
    Sum,
    add_and_norm,
    rotate_and_store,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_SIZE = 1 << 14  # elements of a row that one program holds
NORM, SCALE, ADD = "nsa"
ONE_LAUNCH = re.compile(f"{NORM}?{SCALE}?{ADD}{{0,2}}{NORM}?")  # the order of `Sum`
P, R = ParamSpec("P"), TypeVar("R")
# They read no elements: what they return lies in the same memory.
VIEWS = frozenset({
    Tensor.view, Tensor.transpose, Tensor.unsqueeze, Tensor.split, Tensor.dim, Tensor.size,
    Tensor.stride, Tensor.numel, Tensor.__len__, Tensor.is_contiguous, Tensor.new_empty,
})  # fmt: skip


class Result:
    """The memory of a deferred result, which is not kept alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self.like = torch.empty_like(tensor, device="meta")

    def exists(self) -> bool:
        """Whether something can still read it."""
        return not self._storage.expired()

    def get(self) -> Tensor | None:
        """The tensor, if it exists."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            return None
        whole = torch.empty(0, dtype=self.like.dtype, device=storage.device)
        return whole.set_(storage, 0, self.like.shape, self.like.stride())

    def holds(self, *tensors: Tensor) -> bool:
        """Whether one of the tensors lies in it."""
        return self._storage.cdata in map(_memory, tensors)


class Pending(Protocol):
    """Operations that are not launched yet."""

    inputs: list[Tensor]
    results: list[Result]

    def launch(self) -> None:
        """Fill the results that exist."""


class Step(NamedTuple):
    """An operation of a chain: its kind and a norm, a factor or a tensor."""

    kind: str
    operand: Any


class Chain:
    """Operations on the rows of a tensor, each on the result of the one before."""

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.inputs, self.results = [source], list[Result]()
        self._steps = list[Step]()

    def ends_in(self, tensor: Tensor) -> bool:
        """Whether a tensor is the last result."""
        last = self.results[-1]
        return last.holds(tensor) and last.like.is_contiguous() and tensor.is_contiguous()

    def takes(self, kind: str) -> bool:
        """Whether a launch can compute an operation of this kind as well."""
        kinds = "".join(each.kind for each in self._steps)
        return ONE_LAUNCH.fullmatch(kinds + kind) is not None

    def append(self, kind: str, operand: Any, like: Tensor) -> Tensor:  # noqa: ANN401
        """The result of one more operation."""
        result = torch.empty_like(like)
        self._steps.append(Step(kind, operand))
        self.results.append(Result(result))
        if isinstance(operand, Tensor):
            self.inputs.append(operand)
        return result

    def normed_heads(self, view: Tensor) -> Heads | None:
        """What a view of the result is the norm of, if there is no other operation."""
        result, (kind, operand) = self.results[0], self._steps[0]
        if kind == NORM and len(self._steps) == 1 and result.holds(view) and result.like.dim() == 4:  # noqa: PLR2004
            for own, source in zip(*map(_both_ways, (result.like, self.source)), strict=True):
                if _same_layout(own, view):
                    return Heads(source, operand)
        return None

    def launch(self) -> None:
        """See Pending. A launch ends with a result that exists, or with the norm of that."""
        rows, start = _rows(self.source), 0
        found = [each.get() for each in self.results]
        while existing := [i for i in range(start, len(found)) if found[i] is not None]:
            end = existing[0]
            if existing[1:2] == [end + 1] and self._steps[end + 1].kind == NORM:
                end += 1
            total, normed = found[end], None
            if end > start and self._steps[end].kind == NORM:
                total, normed = found[end - 1], total
            add_and_norm(rows, _sum_of(self._steps[start : end + 1]), total, normed)
            rows, start = _rows(found[end]), end + 1


class RotatedHeads:
    """Queries and keys, perhaps normed, that are turned by their angles."""

    def __init__(self, query: Heads, key: Heads, angles: Angles) -> None:
        self._heads, self._angles = (query, key), angles
        self.inputs = [query.x, key.x, angles.cosine, angles.sine]
        self.results = list[Result]()

    def rotated(self) -> tuple[Tensor, Tensor]:
        """The results: with the nodes first in memory."""
        found = [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x, *_ in self._heads]
        self.results = [Result(each) for each in found]
        return found[0], found[1]

    def gives_key(self, key: Tensor) -> bool:
        """Whether a tensor is all of the keys."""
        return self.results[1].holds(key) and _same_layout(self.results[1].like, key)

    def launch(self, cache: CacheRows | None = None) -> None:
        """See Pending; keys are stored too, and the values with them, if there is a cache."""
        query, key = (
            each._replace(out=result.get())
            for each, result in zip(self._heads, self.results, strict=True)
        )
        if cache or query.out is not None or key.out is not None:
            rotate_and_store(query, key, self._angles, cache)


def deferrable(function: Callable[P, R]) -> Callable[P, R]:
    """The function as one of those that a `Deferral` sees."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if torch._C._is_torch_function_mode_enabled():
            return handle_torch_function(call, (), *args, **named)
        return function(*args, **named)

    return call


@deferrable
def norm(gain: Tensor, epsilon: float, x: Tensor) -> Tensor:
    """The RMS norm of x [..., D] times gain [D]."""
    x = x.contiguous()
    chain = Chain(x)
    normed = chain.append(NORM, Norm(gain, epsilon), x)
    chain.launch()
    return normed


@deferrable
def rotate(
    query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, rotated: int
) -> tuple[Tensor, Tensor]:
    """Rotated query [1, H, N, D] and key [1, K, N, D]; see `Angles`."""
    heads = RotatedHeads(Heads(query), Heads(key), Angles(cosine, sine, rotated))
    found = heads.rotated()
    heads.launch()
    return found


@deferrable
def store(key: Tensor, value: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write key [1, K, N, D] and value to the cache; see `CacheRows`."""
    rotate_and_store(None, Heads(key), None, CacheRows(value, rows, keys, values))


class Deferral(TorchFunctionMode):
    """Defers operations inside the block; at its end everything that exists is computed."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[Pending] = []
        self._deferred: dict[Callable[..., Any], Callable[..., Any]] = {
            Tensor.add: self._add,
            torch.add: self._add,
            Tensor.mul: self._scale,
            norm: self._norm,
            rotate: self._rotate,
            store: self._store,
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # noqa: ARG002
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """torch's contract for modes."""
        named = kwargs or {}
        if func in self._deferred and not named:
            result = self._deferred[func](*args)
            if result is not NotImplemented:
                return result
        if func not in VIEWS and getattr(func, "__name__", "") != "__get__":
            tensors = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
            self._launch_touched(tensors, inputs=True)
        return func(*args, **named)

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:  # noqa: ANN401
        """Operations of a step that failed are dropped."""
        super().__exit__(kind, *rest)
        pending, self._pending = self._pending, []
        for each in pending if kind is None else ():
            each.launch()

    def _launch_touched(self, tensors: Sequence[Tensor], *, inputs: bool = False) -> None:
        """Whatever has results there, or, if they could be changed, `inputs`."""
        touched = set(map(_memory, tensors))
        for each in [*self._pending]:
            if any(result.holds(*tensors) for result in each.results) or (
                inputs and not touched.isdisjoint(map(_memory, each.inputs))
            ):
                self._pending.remove(each)
                each.launch()

    def _note(self, pending: Pending) -> None:
        self._pending = [x for x in self._pending if any(y.exists() for y in x.results)]
        self._pending.append(pending)

    def _add(self, x: Any, y: Any) -> Any:  # noqa: ANN401
        if not (_is_rows(x) and _is_rows(y) and _same_layout(x, y) and x.dtype == y.dtype):
            return NotImplemented
        if self._chain(y, ADD, x):
            x, y = y, x
        return self._operate(x, ADD, y)

    def _scale(self, x: Any, factor: Any) -> Any:  # noqa: ANN401
        if not _is_rows(x) or type(factor) not in (int, float):
            return NotImplemented
        return self._operate(x, SCALE, factor)

    def _norm(self, gain: Tensor, epsilon: float, x: Tensor) -> Any:  # noqa: ANN401
        return NotImplemented if _rows(x) is None else self._operate(x, NORM, Norm(gain, epsilon))

    def _operate(self, x: Tensor, kind: str, operand: Any) -> Tensor:  # noqa: ANN401
        """One more operation on x, in the chain that ends there or in a new one."""
        others = [operand] if isinstance(operand, Tensor) else []
        chain = self._chain(x, kind, *others)
        self._launch_touched(others if chain else [x, *others])
        if chain is None:
            chain = Chain(x)
            self._note(chain)
        return chain.append(kind, operand, x)

    def _chain(self, end: Tensor, kind: str, *others: Tensor) -> Chain | None:
        """The chain whose last result is `end`, if it takes one more operation, with others."""
        for each in self._pending:
            if isinstance(each, Chain) and each.ends_in(end) and each.takes(kind):
                return None if any(x.holds(*others) for x in each.results) else each
        return None

    def _rotate(
        self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, rotated: int
    ) -> tuple[Tensor, Tensor]:
        self._launch_touched([cosine, sine])
        heads = RotatedHeads(self._heads(query), self._heads(key), Angles(cosine, sine, rotated))
        found = heads.rotated()
        self._note(heads)
        return found

    def _heads(self, x: Tensor) -> Heads:
        for each in self._pending:
            if isinstance(each, Chain) and (heads := each.normed_heads(x)):
                return heads
        self._launch_touched([x])
        return Heads(x)

    def _store(self, key: Tensor, *cache: Tensor) -> Any:  # noqa: ANN401
        for each in self._pending:
            if isinstance(each, RotatedHeads) and each.gives_key(key):
                self._pending.remove(each)
                self._launch_touched(cache, inputs=True)
                each.launch(CacheRows(*cache))
                return None
        return NotImplemented


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _same_layout(x: Tensor, y: Tensor) -> bool:
    return (x.shape, x.stride()) == (y.shape, y.stride())


def _both_ways(x: Tensor) -> tuple[Tensor, Tensor]:
    """[1, N, H, D] as it is and with the heads before the nodes, or the other way round."""
    return x, x.transpose(1, 2)


def _is_rows(x: Any) -> bool:  # noqa: ANN401
    """Whether it is a tensor whose rows can be part of a chain."""
    return (
        isinstance(x, Tensor)
        and x.dtype in DTYPES
        and x.dim() > 1
        and x.shape[-1] <= MAX_SIZE
        and x.is_contiguous()
    )


def _rows(x: Tensor) -> Tensor | None:
    """[N, H, D]: the rows of x [..., D] as they lie in memory; none if they are too scattered."""
    if x.is_contiguous():
        return x.view(-1, 1, x.shape[-1])
    *lengths, size = x.shape
    outer = sorted(((x.stride(i), n) for i, n in enumerate(lengths) if n > 1), reverse=True)
    if len(outer) > 2 or x.stride(-1) != 1 or not all(step for step, _ in outer):  # noqa: PLR2004
        return None
    (far, nodes), (near, heads) = [*outer, (0, 1), (0, 1)][:2]
    return x.as_strided((nodes, heads, size), (far, near, 1))


def _sum_of(steps: Sequence[Step]) -> Sum:
    """A chain that one launch computes."""
    first, last, rest = steps[0], steps[-1], steps[1:]
    return Sum(
        before=first.operand if first.kind == NORM else Norm(),
        factor=next((each.operand for each in steps if each.kind == SCALE), None),
        added=tuple(each.operand for each in steps if each.kind == ADD),
        after=last.operand if rest and last.kind == NORM else Norm(),
    )
