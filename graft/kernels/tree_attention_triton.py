"""Hybrid tree attention on a GPU (LongSpec, section 3.3), as `tree_attention_torch` defines it.

A program computes one task of the plan for one key head and loads the keys once for all queries of
the head's group. Committed keys need no mask. Tree nodes follow the task's last committed key; the
ancestor mask is stored as bits. A row's partial results are merged by their log-sum-exp in fp32.
There is no mask over the context, and everything that changes between steps is read from device
memory.
"""

from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout
from graft.kernels.tree_plan import COLUMNS, WORD, TreePlan, plan_tree, tile_of

_LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Launch parameters: keys per iteration, warps, stages, programs per multiprocessor."""

    keys: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan in device memory, padded with empty tasks for a captured graph."""

    tile: int
    tasks: Tensor  # [T, COLUMNS] int32
    parts: Tensor  # [N] int32
    bits: Tensor  # [N, W] int64
    positions: Tensor  # [N] int32 or int64
    max_parts: int


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: TreeLayout,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `tree_attention_torch`."""
    plan = place(layout, query.shape[1] // keys.shape[0], keys)
    return attend(
        query.contiguous(), keys, values, plan,
        scale=scale, window=window, softcap=softcap, sinks=sinks,
    )  # fmt: skip


_placed: "WeakKeyDictionary[TreeLayout, PlacedPlan]" = WeakKeyDictionary()


def place(layout: TreeLayout, group: int, keys: Tensor) -> PlacedPlan:
    """The plan of a layout, computed once and copied to the device of the keys."""
    if layout not in _placed:
        plan = plan_for(layout, group, keys)
        device = keys.device
        _placed[layout] = PlacedPlan(
            plan.tile,
            torch.from_numpy(plan.tasks).to(device),
            torch.from_numpy(plan.parts).to(device),
            torch.from_numpy(plan.bits).to(device),
            torch.from_numpy(layout.positions).to(device),
            int(plan.parts.max(initial=1)),
        )
    return _placed[layout]


def plan_for(layout: TreeLayout, group: int, keys: Tensor) -> TreePlan:
    """The plan for this layout on the device of the keys [K, rows, D]."""
    tile = tile_of(layout, group, tiles_of(keys.dtype, keys.shape[2]))
    wanted = tasks_wanted(tile, keys.shape[0], keys.shape[2], keys.dtype, keys.device)
    return plan_tree(layout, group=group, tile=tile, tasks=wanted)


@cache
def tasks_wanted(
    tile: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Tasks of `tile` query rows per key head that keep the device busy."""
    programs = tiles_for(tile, size, dtype).programs
    return max(1, programs * _multiprocessors(device) // kv_heads)


def _multiprocessors(device: torch.device) -> int:
    """The device's number; 4 for Triton's interpreter."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def tiles_of(dtype: torch.dtype, size: int) -> tuple[int, ...]:
    """Query rows of a task; sizes between 16 and 64 are no faster on tensor cores."""
    if dtype == torch.float32:
        return 16, 32
    return (16, 64) if size > 128 else (16, 64, 128)


def tiles_for(rows: int, size: int, dtype: torch.dtype) -> Tiles:
    """Launch parameters for tasks of so many query rows and heads of this size."""
    if dtype == torch.float32:
        return Tiles(keys=32, warps=4, stages=2, programs=2)
    if size > 128:
        return Tiles(keys=32, warps=4, stages=2, programs=1)
    if rows <= 64:
        return Tiles(keys=64, warps=4, stages=4, programs=1 if size > 64 else 2)
    return Tiles(keys=64, warps=8, stages=3, programs=1)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PlacedPlan,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """[N, H, D] by a plan on the device; `tiles` overrides the launch parameters."""
    nodes, heads, size = query.shape
    kv_heads = keys.shape[0]
    assert query.is_contiguous(), "queries must be contiguous"
    assert keys.stride() == values.stride(), "keys and values must have the same layout"
    assert keys.stride()[1:] == (size, 1), "a cache row must be contiguous"
    tiles = tiles or tiles_for(plan.tile, size, query.dtype)
    assert WORD % tiles.keys == 0, "keys of an iteration must share a word of the tree's bits"
    result = torch.empty_like(query)
    parts = plan.max_parts if plan.max_parts > 1 else 0
    mixed = query.new_empty((parts, nodes, heads, size), dtype=torch.float32)
    sums = query.new_empty((parts, nodes, heads), dtype=torch.float32)
    options = dict(
        HEADS=heads, SIZE=size, PADDED=triton.next_power_of_2(size), HAS_SINKS=sinks is not None
    )  # fmt: skip
    _attend[(len(plan.tasks), kv_heads)](
        query, keys, values, result, mixed, sums, sinks, plan.tasks, plan.bits, plan.positions,
        keys.stride(0), nodes, plan.bits.shape[1], scale, softcap or 1.0, window or 0,
        GROUP=heads // kv_heads, TILE=plan.tile, KEYS=tiles.keys, COLUMNS=COLUMNS,
        HAS_WINDOW=window is not None, HAS_SOFTCAP=softcap is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiles.warps, num_stages=tiles.stages, **options,
    )  # fmt: skip
    if parts:
        _merge[(nodes, heads)](
            mixed, sums, sinks, plan.parts, result, nodes, PARTS=16, num_warps=4, **options
        )
    return result


# The inputs of a step are packed (`device_step`): another alignment does not recompile.
@triton.jit(
    do_not_specialize=["nodes", "words", "window"],
    do_not_specialize_on_alignment=["tasks", "bits", "positions"],
)
def _attend(
    query, keys, values, result, mixed_parts, sum_parts, sinks, tasks, bits, positions,
    head_stride, nodes, words, scale, softcap, window,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One task for one key head; the columns of a task are those of `tree_plan`."""
    task = tasks + tl.program_id(0) * COLUMNS
    head = tl.program_id(1)
    rows = tl.load(task + 1)
    if rows == 0:
        return
    row = tl.load(task) + tl.arange(0, TILE)
    is_row = tl.arange(0, TILE) < rows
    node = row // GROUP
    place = node.to(tl.int64) * HEADS + head * GROUP + row % GROUP  # [TILE] of [N, H]
    column = tl.arange(0, PADDED)
    q = tl.load(
        query + place[:, None] * SIZE + column[None, :],
        mask=is_row[:, None] & (column < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    base = head.to(tl.int64) * head_stride + tl.load(task + 2).to(tl.int64) * SIZE
    keys += base
    values += base
    count = tl.load(task + 3)
    first_position = tl.load(task + 4)
    tree = tl.load(task + 5)
    first = tl.load(task + 6)
    is_chain = tl.load(task + 7) > 0

    # A row sees the first `seen` keys: the committed ones and, in a chain, its own ancestors.
    seen = count + tl.where((tree > 0) & is_chain & is_row, node - first + 1, 0)
    last_seen = tl.max(tl.where(is_row, seen, 0), 0)
    free = tl.min(tl.where(is_row, seen, last_seen), 0)  # every row sees these
    start = count * 0
    position = row * 0
    if HAS_WINDOW:
        position = tl.load(positions + node, mask=is_row, other=0).to(tl.int32)
        lowest = tl.min(tl.where(is_row, position, 2147483647), 0) - window + 1 - first_position
        start = tl.maximum(lowest, 0) // KEYS * KEYS
        free = start

    best = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, PADDED), tl.float32)
    offset = tl.arange(0, KEYS)
    for key in tl.range(start, free // KEYS * KEYS, KEYS):
        best, total, mixed = _add_visible_keys(
            q, keys, values, key + offset, best, total, mixed, scale, softcap,
            SIZE, PADDED, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    for key in tl.range(tl.maximum(start, free // KEYS * KEYS), last_seen, KEYS, num_stages=1):
        index = key + offset
        visible = index[None, :] < seen[:, None]
        if HAS_WINDOW:
            visible &= position[:, None] - (first_position + index)[None, :] < window
        best, total, mixed = _add_masked_keys(
            q, keys, values, index, index < last_seen, visible, best, total, mixed, scale, softcap,
            SIZE, PADDED, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    # Later nodes are not ancestors of these.
    last = tl.where((tree > 0) & ~is_chain, tl.max(tl.where(is_row, node, 0), 0) - first + 1, 0)
    for key in tl.range(0, last, KEYS, num_stages=1):
        index = key + offset
        visible = _ancestors(bits, words, node, key, offset, is_row) & (index < last)[None, :]
        if HAS_WINDOW:
            other = tl.load(positions + first + index, mask=index < last, other=0)
            visible &= position[:, None] - other.to(tl.int32)[None, :] < window
        best, total, mixed = _add_masked_keys(
            q, keys, values, count + index, index < last, visible, best, total, mixed, scale,
            softcap, SIZE, PADDED, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip

    if tl.load(task + 9) == 1:
        if HAS_SINKS:
            sink = tl.load(sinks + head * GROUP + row % GROUP, mask=is_row, other=0.0)
            best, total, mixed = _sink(sink, best, total, mixed)
        _store(result, place, is_row, mixed, total, SIZE, PADDED)
    else:
        place += tl.load(task + 8).to(tl.int64) * nodes * HEADS
        _store(mixed_parts, place, is_row, mixed, total, SIZE, PADDED)
        tl.store(sum_parts + place, best + tl.log2(total), mask=is_row)  # -inf without keys


@triton.jit
def _add_visible_keys(
    q, keys, values, index, best, total, mixed, scale, softcap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys that every row sees to the partial softmax."""
    column = tl.arange(0, PADDED)
    where = index[:, None] * SIZE + column[None, :]
    inside = None if SIZE == PADDED else (column < SIZE)[None, :]
    k = tl.load(keys + where, mask=inside)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if HAS_SOFTCAP:
        scores = _cap(scores, scale, softcap)
        newest = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - newest[:, None])
    else:
        newest = tl.maximum(best, tl.max(scores, 1) * (scale * _LOG2E))
        weights = tl.exp2(scores * (scale * _LOG2E) - newest[:, None])
    decay = tl.exp2(best - newest)
    v = tl.load(values + where, mask=inside)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision=PRECISION)
    return newest, total * decay + tl.sum(weights, 1), mixed


@triton.jit
def _add_masked_keys(
    q, keys, values, index, exists, visible, best, total, mixed, scale, softcap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys of which a row may see some, or none."""
    column = tl.arange(0, PADDED)
    where = index[:, None] * SIZE + column[None, :]
    inside = exists[:, None] & (column < SIZE)[None, :]
    k = tl.load(keys + where, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    scores = _cap(scores, scale, softcap) if HAS_SOFTCAP else scores * (scale * _LOG2E)
    scores = tl.where(visible, scores, float("-inf"))
    newest = tl.maximum(best, tl.max(scores, 1))
    finite = tl.where(newest == float("-inf"), 0.0, newest)
    weights = tl.exp2(scores - finite[:, None])
    decay = tl.exp2(best - finite)
    v = tl.load(values + where, mask=inside, other=0.0)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision=PRECISION)
    return newest, total * decay + tl.sum(weights, 1), mixed


@triton.jit
def _ancestors(bits, words, node, key, offset, is_row):
    """[TILE, KEYS] bool: whether tree node key + offset is an ancestor of a row's node, or itself.
    Keys of an iteration share a word of 64 bits, so a row loads one."""
    place = node.to(tl.int64) * words + key // 64
    word = tl.load(bits + place, mask=is_row, other=0)
    return ((word[:, None] >> (key % 64 + offset)[None, :]) & 1) != 0


@triton.jit
def _store(result, place, is_row, mixed, total, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """mixed / total; zeros where no key is visible."""
    column = tl.arange(0, PADDED)
    final = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        result + place[:, None] * SIZE + column[None, :],
        final.to(result.dtype.element_ty), mask=is_row[:, None] & (column < SIZE)[None, :],
    )  # fmt: skip


@triton.jit
def _cap(scores, scale, softcap):
    """softcap * tanh(scores * scale / softcap), in powers of two."""
    doubled = tl.exp2(scores * (2.0 * _LOG2E * scale / softcap))
    return (softcap * _LOG2E) * (1.0 - 2.0 / (doubled + 1.0))


@triton.jit
def _sink(sink, best, total, mixed):
    """A sink adds to the sum and has no value."""
    sink = sink.to(tl.float32) * _LOG2E
    newest = tl.maximum(best, sink)
    decay = tl.exp2(best - newest)
    return newest, total * decay + tl.exp2(sink - newest), mixed * decay[:, None]


@triton.jit(do_not_specialize=["nodes"], do_not_specialize_on_alignment=["parts"])
def _merge(
    mixed_parts, sum_parts, sinks, parts, result, nodes,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merge the partial results of one node and head."""
    node = tl.program_id(0)
    head = tl.program_id(1)
    count = tl.load(parts + node)
    if count < 2:
        return
    place = node.to(tl.int64) * HEADS + head
    step = nodes.to(tl.int64) * HEADS
    column = tl.arange(0, PADDED)
    best = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((1, PADDED), tl.float32)
    for first in tl.range(0, count, PARTS):
        part = first + tl.arange(0, PARTS)
        at = place + part * step
        sums = tl.load(sum_parts + at, mask=part < count, other=float("-inf"))
        some = tl.load(
            mixed_parts + at[:, None] * SIZE + column[None, :],
            mask=(part < count)[:, None] & (column < SIZE)[None, :], other=0.0,
        )  # fmt: skip
        newest = tl.maximum(best, tl.max(sums, 0))
        finite = tl.where(newest == float("-inf"), 0.0, newest)
        weights = tl.exp2(sums - finite)
        decay = tl.exp2(best - finite)
        total = total * decay + tl.sum(weights, 0)
        mixed = mixed * decay[:, None] + tl.sum(some * weights[:, None], 0)[None, :]
        best = newest
    if HAS_SINKS:
        best, total, mixed = _sink(tl.load(sinks + head), best, total, mixed)
    final = mixed / total[:, None]
    tl.store(
        result + place * SIZE + column[None, :],
        final.to(result.dtype.element_ty), mask=(column < SIZE)[None, :],
    )  # fmt: skip
