"""Hybrid tree attention on a GPU (LongSpec, section 3.3) in splits of fixed borders (`split_plan`).

A node's result depends on its own path alone, bit for bit. Scores and weighted values are matrix
products, which accumulate a row's elements in the same order for any number of rows. The sum of a
block's weights is exact, in any order: for it they are rounded to multiples of 2**-18. The maximum
is rounded up to a power of two, so rescaling by another maximum is exact. Blocks add to a split in
order, and splits are merged in order; one program does that or several, with the same sums.

`_attend` computes the tasks of a plan; `_finish` merges a node's splits and adds the keys behind
its sequence's last whole block, where every node has its own ancestors.
"""

from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import multiprocessors, overlapped, wait
from graft.kernels.level_attention_triton import store_mean
from graft.kernels.split_plan import (
    BLOCK,
    EXTENT_COLUMNS,
    MIN_SPLIT,
    NODE_COLUMNS,
    SPLITS_PER_DOUBLING,
    TASK_COLUMNS,
    SplitPlan,
    max_split,
    plan_splits,
)
from graft.kernels.tree_layout import TreeLayout

try:
    from graft.kernels import chunk_attention_gluon as chunks
except ImportError:  # an older Triton
    chunks = None  # type: ignore[assignment]

FEW_ROWS = 16  # query rows with which a task is limited by memory bandwidth
_FEW_ROWS = tl.constexpr(FEW_ROWS)
_LOG2E = tl.constexpr(1.4426950408889634)
_KEYS = tl.constexpr(BLOCK)
_MIN_SPLIT = tl.constexpr(MIN_SPLIT)
_PER_DOUBLING = tl.constexpr(SPLITS_PER_DOUBLING)
_TASK = tl.constexpr(TASK_COLUMNS)
_NODE = tl.constexpr(NODE_COLUMNS)
_EXTENT = tl.constexpr(EXTENT_COLUMNS)
_ROUNDING = tl.constexpr(48.0)  # where float32 has steps of 2**-18
_AHEAD = tl.constexpr(8)  # stored splits that `_finish` loads at once ...
_FOLD_AHEAD = tl.constexpr(32)  # ... and `_fold`, whose rows take fewer registers
FOLD = 16  # stored splits of a node above which they are merged by a kernel of their own


@dataclass(frozen=True, slots=True)
class PlacedSplits:
    """A plan in device memory, padded for a captured graph."""

    tile: int
    tasks: Tensor  # [T, TASK_COLUMNS] int32
    chunks: Tensor  # [C, TASK_COLUMNS] int32
    nodes: Tensor  # [S, NODE_COLUMNS] int32
    extents: Tensor  # [E, EXTENT_COLUMNS] int32
    paths: Tensor  # [S, W] int32
    positions: Tensor  # [N] int64
    parts: int
    gathered: bool


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


_placed: "WeakKeyDictionary[TreeLayout, PlacedSplits]" = WeakKeyDictionary()


def place(layout: TreeLayout, group: int, keys: Tensor) -> PlacedSplits:
    """The plan of a layout, computed once and copied to the device of the keys."""
    if layout not in _placed:
        plan = plan_for(layout, group, keys)
        arrays = (plan.tasks, plan.chunks, plan.nodes, plan.extents, plan.paths, layout.positions)
        tasks, chunks, nodes, extents, paths, positions = (
            torch.from_numpy(each).to(keys.device) for each in arrays
        )
        _placed[layout] = PlacedSplits(
            plan.tile, tasks, chunks, nodes, extents, paths, positions, plan.parts, plan.gathered
        )
    return _placed[layout]


def plan_for(layout: TreeLayout, group: int, keys: Tensor) -> SplitPlan:
    """The plan for this layout on the device of the keys [K, rows, D]."""
    kv_heads = len(keys)
    tasks, tiles = tasks_wanted(kv_heads, keys.device), tiles_of(keys.dtype)
    return plan_splits(layout, group=group, kv_heads=kv_heads, tiles=tiles, tasks=tasks)


@cache
def tasks_wanted(kv_heads: int, device: torch.device) -> int:
    """Tasks per key head that run at once."""
    return max(1, multiprocessors(device) // kv_heads)


def tiles_of(dtype: torch.dtype) -> tuple[int, ...]:
    """Query rows of a task. In float32 sums have the order of the tile, so there is one."""
    return (16,) if dtype == torch.float32 else (16, 64)


def launch_of(tile: int, size: int, dtype: torch.dtype) -> dict[str, int]:
    """Warps and pipeline stages; they do not change results."""
    if dtype == torch.float32:
        return {"num_warps": 4, "num_stages": 1 if size > 128 else 2}
    if size > 128:
        return {"num_warps": 4, "num_stages": 2}
    return {"num_warps": 4, "num_stages": 3 if tile > FEW_ROWS else 4}


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PlacedSplits,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[N, H, D] by a plan on the device."""
    _, heads, size = query.shape
    kv_heads, slots = keys.shape[0], len(plan.nodes)
    group, device = heads // kv_heads, query.device
    assert query.is_contiguous(), "queries must be contiguous"
    assert keys.stride() == values.stride(), "keys and values must have the same layout"
    assert keys.stride()[1:] == (size, 1), "a cache row must be contiguous"
    result = torch.empty_like(query)
    mixed = query.new_empty((plan.parts, slots, heads, size), dtype=torch.float32)
    sums = query.new_empty((2, plan.parts, slots, heads), dtype=torch.float32)
    scaled = scale if softcap is not None else scale * _LOG2E.value
    options = dict(
        GROUP=group, HEADS=heads, SIZE=size, PADDED=triton.next_power_of_2(size),
        LONGEST=max_split(kv_heads), HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None, HAS_SINKS=sinks is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", **overlapped(device),
    )  # fmt: skip
    shared = (
        query, keys, values, result, mixed, sums, sinks, plan.extents, plan.positions,
        keys.stride(0), slots, plan.parts, scaled, softcap or 1.0, window or 0,
    )  # fmt: skip
    tables = [(plan.chunks, tiles_of(query.dtype)[-1]), (plan.tasks, plan.tile)]
    is_plain = window is None and softcap is None and sinks is None
    if is_plain and not plan.gathered and chunks and chunks.runs_on(device, size, query.dtype):
        (table, _) = tables.pop(0)
        if len(table):
            chunks.attend_chunks(query, keys, values, result, plan, scaled)
    for tasks, tile in tables:
        if not len(tasks):
            continue
        # With few rows, all heads of a long task start before short tasks; with many, the tiles of
        # one head follow each other, whose keys stay in the cache.
        grid = (kv_heads, len(tasks)) if tile <= FEW_ROWS else (len(tasks), kv_heads)
        _attend[grid](
            *shared, tasks, TILE=tile, **{**options, **overlapped(device, early=False)},
            **launch_of(tile, size, query.dtype),
        )  # fmt: skip
    is_folded = plan.parts > FOLD
    if slots and is_folded:
        _fold[(slots, heads)](
            mixed, sums, slots, plan.parts, plan.nodes,
            HEADS=heads, SIZE=size, PADDED=options["PADDED"], num_warps=1, **overlapped(device),
        )  # fmt: skip
    if slots:
        _finish[(slots, kv_heads)](
            *shared, plan.nodes, plan.paths, plan.paths.shape[1],
            TILE=max(FEW_ROWS, triton.next_power_of_2(group)), IS_FOLDED=is_folded, **options,
            **launch_of(FEW_ROWS, size, query.dtype),
        )  # fmt: skip
    return result


# The inputs of a step are packed (`device_step`): another alignment does not recompile.
@triton.jit(
    do_not_specialize=["slots", "parts", "window"],
    do_not_specialize_on_alignment=["tasks", "extents", "positions"],
)
def _attend(
    query, keys, values, result, mixed_parts, sum_parts, sinks, extents, positions,
    head_stride, slots, parts, scale, softcap, window, tasks,
    TILE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, LONGEST: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One task for one key head; the columns of a task are those of `split_plan`."""
    HEADS_FIRST: tl.constexpr = TILE <= _FEW_ROWS
    task = tasks + tl.program_id(1 if HEADS_FIRST else 0) * _TASK
    head = tl.program_id(0 if HEADS_FIRST else 1)
    row = tl.load(task) + tl.arange(0, TILE)
    rows = tl.load(task + 1)
    is_row = tl.arange(0, TILE) < rows
    node = row // GROUP
    place = node.to(tl.int64) * HEADS + head * GROUP + row % GROUP  # [TILE] of [N, H]
    keys += head.to(tl.int64) * head_stride
    values += head.to(tl.int64) * head_stride
    first, end = tl.load(task + 2), tl.load(task + 3)
    merged, last = tl.load(task + 4), tl.load(task + 5)
    extent, count = tl.load(task + 6), tl.load(task + 7)
    committed, first_node = tl.load(task + 8), tl.load(task + 9)
    is_direct = tl.load(task + 10) > 0
    stored = place - tl.load(task + 11).to(tl.int64) * HEADS  # [TILE] of [S, H]
    wait(PDL)
    if rows == 0:
        return
    q = _queries(query, place, is_row, SIZE, PADDED)

    # A row of a chain that is computed here alone sees the committed keys and its own ancestors.
    seen = committed + tl.where(is_row, node - first_node + 1, 0)
    last_seen = tl.max(tl.where(is_row, seen, 0), 0)
    free = tl.where(is_direct, tl.min(tl.where(is_row, seen, last_seen), 0) // _KEYS, end)
    stop = tl.where(is_direct, tl.cdiv(last_seen, _KEYS), end)
    start = first
    position, step = row * 0, committed * 0
    if HAS_WINDOW:
        position = tl.load(positions + node, mask=is_row, other=0).to(tl.int32)
        step = tl.load(positions + first_node).to(tl.int32) - committed  # of the chain's own keys
        lowest = tl.min(tl.where(is_row, position, 2147483647), 0)
        start = _first_in_window(extents, extent, count, lowest, window, first, stop)
        free = start

    whole_best, whole_sum, whole = _empty(TILE, PADDED)
    best, total, mixed = _empty(TILE, PADDED)
    offset = tl.arange(0, _KEYS)
    if count == 1:
        shift = tl.load(extents + extent * _EXTENT + 1)
        for block in tl.range(start, free):
            whole_best, whole_sum, whole, best, total, mixed = _close_split(
                block, first, whole_best, whole_sum, whole, best, total, mixed,
                TILE, PADDED, LONGEST,
            )  # fmt: skip
            where = (shift + block * _KEYS + offset).to(tl.int64)
            k, v = _load_block(keys, values, where, None, SIZE, PADDED)
            best, total, mixed = _add_block(
                q, k, v, None, best, total, mixed, scale, softcap, HAS_SOFTCAP, PRECISION
            )
        start = tl.maximum(start, free)
    for block in tl.range(start, stop, num_stages=1):
        whole_best, whole_sum, whole, best, total, mixed = _close_split(
            block, first, whole_best, whole_sum, whole, best, total, mixed, TILE, PADDED, LONGEST
        )
        index = block * _KEYS + offset
        exists = index < tl.where(is_direct, last_seen, (block + 1) * _KEYS)
        visible = (index[None, :] < seen[:, None]) | ~is_direct
        where = _rows_of(extents, extent, count, index)
        if HAS_WINDOW:
            at = _positions_of(extents, extent, count, index, committed, step)
            visible &= position[:, None] - at[None, :] < window
        k, v = _load_block(keys, values, where, exists, SIZE, PADDED)
        best, total, mixed = _add_block(
            q, k, v, visible, best, total, mixed, scale, softcap, HAS_SOFTCAP, PRECISION
        )

    if last < 0:
        whole_best, whole_sum, whole = _merge(whole_best, whole_sum, whole, best, total, mixed)
    if is_direct:
        _store_result(
            result, place, is_row, whole_best, whole_sum, whole, sinks, head * GROUP + row % GROUP,
            SIZE, PADDED, HAS_SINKS,
        )  # fmt: skip
    step, sums = slots.to(tl.int64) * HEADS, parts.to(tl.int64) * slots * HEADS
    _store_part(
        mixed_parts, sum_parts, stored + merged * step, is_row & (merged >= 0), sums,
        whole_best, whole_sum, whole, SIZE, PADDED,
    )  # fmt: skip
    _store_part(
        mixed_parts, sum_parts, stored + last * step, is_row & (last >= 0), sums,
        best, total, mixed, SIZE, PADDED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slots", "parts"], do_not_specialize_on_alignment=["table"])
def _fold(
    mixed_parts, sum_parts, slots, parts, table,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one node and query head into the first of them."""
    slot = tl.program_id(0)
    splits = tl.load(table + slot * _NODE)
    place = slot.to(tl.int64) * HEADS + tl.program_id(1) + tl.arange(0, 1)
    step, sums = slots.to(tl.int64) * HEADS, parts.to(tl.int64) * slots * HEADS
    whole_best, whole_sum, whole = _empty(1, PADDED)
    wait(PDL)
    for split in tl.range(0, splits, _FOLD_AHEAD):
        for ahead in tl.static_range(_FOLD_AHEAD):
            best, total, mixed = _load_part(
                mixed_parts, sum_parts, place + (split + ahead) * step,
                (place >= 0) & (split + ahead < splits), sums, SIZE, PADDED,
            )  # fmt: skip
            whole_best, whole_sum, whole = _merge(whole_best, whole_sum, whole, best, total, mixed)
    _store_part(
        mixed_parts, sum_parts, place, (place >= 0) & (splits > 1), sums,
        whole_best, whole_sum, whole, SIZE, PADDED,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["slots", "parts", "window", "width"],
    do_not_specialize_on_alignment=["table", "paths", "extents", "positions"],
)
def _finish(
    query, keys, values, result, mixed_parts, sum_parts, sinks, extents, positions,
    head_stride, slots, parts, scale, softcap, window, table, paths, width,
    TILE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, LONGEST: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, PRECISION: tl.constexpr,
    IS_FOLDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The splits of one node and key head, and the keys behind them."""
    slot, head = tl.program_id(0), tl.program_id(1)
    entry = table + slot * _NODE
    splits = tl.load(entry)
    unfinished, first = tl.load(entry + 1), tl.load(entry + 2)
    committed, depth = tl.load(entry + 3), tl.load(entry + 4)
    tail, is_chain = tl.load(entry + 5), tl.load(entry + 6) > 0
    extent, count = tl.load(entry + 7), tl.load(entry + 8)
    node = tl.load(entry + 9)
    member = tl.arange(0, TILE)
    is_row = member < GROUP
    place = node.to(tl.int64) * HEADS + head * GROUP + member
    stored = slot.to(tl.int64) * HEADS + head * GROUP + member
    keys += head.to(tl.int64) * head_stride
    values += head.to(tl.int64) * head_stride
    step, sums = slots.to(tl.int64) * HEADS, parts.to(tl.int64) * slots * HEADS
    own = committed + depth  # the node's own index
    start = first
    position = depth * 0
    if HAS_WINDOW:
        position = tl.load(positions + node).to(tl.int32)
        start = _first_in_window(extents, extent, count, position, window, first, own // _KEYS + 1)
    path = paths + slot.to(tl.int64) * width
    where = tl.zeros((_KEYS,), tl.int64)
    exists = where > 0
    seen = exists
    if splits >= 0:
        where, exists, seen = _tail_block(
            start, own, committed, position, tail, is_chain, path, extents, extent, count,
            window, HAS_WINDOW,
        )  # fmt: skip
    wait(PDL)
    if splits < 0:
        return
    q = _queries(query, place, is_row, SIZE, PADDED)
    # The first block behind the splits is loaded while they are merged.
    k, v = _load_block(keys, values, where, exists, SIZE, PADDED)
    if IS_FOLDED:
        splits = tl.minimum(splits, 1)
    whole_best, whole_sum, whole = _empty(TILE, PADDED)
    for split in tl.range(0, splits, _AHEAD):
        for ahead in tl.static_range(1 if IS_FOLDED else _AHEAD):
            best, total, mixed = _load_part(
                mixed_parts, sum_parts, stored + (split + ahead) * step,
                is_row & (split + ahead < splits), sums, SIZE, PADDED,
            )  # fmt: skip
            whole_best, whole_sum, whole = _merge(whole_best, whole_sum, whole, best, total, mixed)
    best, total, mixed = _load_part(
        mixed_parts, sum_parts, stored + unfinished * step, is_row & (unfinished >= 0), sums,
        SIZE, PADDED,
    )  # fmt: skip
    for block in tl.range(start, own // _KEYS + 1, num_stages=1):
        whole_best, whole_sum, whole, best, total, mixed = _close_split(
            block, first, whole_best, whole_sum, whole, best, total, mixed, TILE, PADDED, LONGEST
        )
        if block > start:
            where, exists, seen = _tail_block(
                block, own, committed, position, tail, is_chain, path, extents, extent, count,
                window, HAS_WINDOW,
            )  # fmt: skip
            k, v = _load_block(keys, values, where, exists, SIZE, PADDED)
        best, total, mixed = _add_block(
            q, k, v, seen[None, :] & is_row[:, None], best, total, mixed, scale, softcap,
            HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    whole_best, whole_sum, whole = _merge(whole_best, whole_sum, whole, best, total, mixed)
    _store_result(
        result, place, is_row, whole_best, whole_sum, whole, sinks, head * GROUP + member,
        SIZE, PADDED, HAS_SINKS,
    )  # fmt: skip


@triton.jit
def _tail_block(
    block, own, committed, position, tail, is_chain, path, extents, extent, count, window,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Of the keys of a block on a node's path: cache rows, whether they exist and are seen."""
    index = block * _KEYS + tl.arange(0, _KEYS)
    exists = index <= own
    level = index - committed
    is_draft = exists & (level >= 0)
    ancestor = tl.load(path + level, mask=is_draft & ~is_chain, other=0)
    ancestor = tl.where(is_chain, level, ancestor)
    where = _rows_of(extents, extent, count, index)
    where = tl.where(is_draft, tail + ancestor, where)
    seen = exists
    if HAS_WINDOW:
        at = _positions_of(extents, extent, count, index, committed, position - own)
        seen &= position - at < window
    return where, exists, seen


@triton.jit
def _queries(query, place, is_row, SIZE: tl.constexpr, PADDED: tl.constexpr):
    column = tl.arange(0, PADDED)
    return tl.load(
        query + place[:, None] * SIZE + column[None, :],
        mask=is_row[:, None] & (column < SIZE)[None, :], other=0.0,
    )  # fmt: skip


@triton.jit
def _empty(TILE: tl.constexpr, PADDED: tl.constexpr):
    """A partial softmax of no keys: maximum in powers of two, sum of weights, weighted values."""
    best = tl.full((TILE,), float("-inf"), tl.float32)
    return best, tl.zeros((TILE,), tl.float32), tl.zeros((TILE, PADDED), tl.float32)


@triton.jit
def _close_split(
    block, first, whole_best, whole_sum, whole, best, total, mixed,
    TILE: tl.constexpr, PADDED: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """Merge the split in front of this block into the whole, if another begins here."""
    if (block > first) & _is_border(block, LONGEST):
        whole_best, whole_sum, whole = _merge(whole_best, whole_sum, whole, best, total, mixed)
        best, total, mixed = _empty(TILE, PADDED)
    return whole_best, whole_sum, whole, best, total, mixed


@triton.jit
def _is_border(block, LONGEST: tl.constexpr):
    """Whether a split begins at this block; see `split_plan.split_blocks`."""
    size = block * 0 + _MIN_SPLIT
    longest: tl.constexpr = LONGEST
    doubled: tl.constexpr = 2 * _PER_DOUBLING
    for power in tl.static_range(1, 24):
        if (_MIN_SPLIT << power) <= longest:
            size = tl.where(
                doubled * (_MIN_SPLIT << (power - 1)) <= block, _MIN_SPLIT << power, size
            )
    return block % size == 0


@triton.jit
def _rows_of(extents, extent, count, index):
    """The cache rows of these keys."""
    row = index + tl.load(extents + extent * _EXTENT + 1)
    for other in range(1, count):
        entry = extents + (extent + other) * _EXTENT
        row = tl.where(index >= tl.load(entry), index + tl.load(entry + 1), row)
    return row.to(tl.int64)


@triton.jit
def _positions_of(extents, extent, count, index, committed, step):
    """The positions of these keys; `step` is that of keys behind the committed ones."""
    position = index + tl.load(extents + extent * _EXTENT + 2)
    for other in range(1, count):
        entry = extents + (extent + other) * _EXTENT
        position = tl.where(index >= tl.load(entry), index + tl.load(entry + 2), position)
    return tl.where(index >= committed, index + step, position)


@triton.jit
def _first_in_window(extents, extent, count, position, window, first, stop):
    """The first block that the window of a row at this position, the lowest, may reach."""
    lowest = position - window + 1
    reached = (lowest - tl.load(extents + extent * _EXTENT + 2)) // _KEYS
    reached = tl.where(count > 1, first, reached)  # there may be gaps between positions
    return tl.minimum(tl.maximum(first, reached), stop)


@triton.jit
def _power(exponent):
    """2 to a whole number of at most 0, exactly; 0 below the smallest normal number."""
    whole = tl.maximum(exponent, -127.0).to(tl.int32)
    return ((whole + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _load_block(keys, values, where, exists, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Keys and values in these cache rows; zeros where none exist."""
    column = tl.arange(0, PADDED)
    place = where[:, None] * SIZE + column[None, :]
    if exists is None:
        inside = None if SIZE == PADDED else (column < SIZE)[None, :]
    else:
        inside = exists[:, None] & (column < SIZE)[None, :]
    other = None if inside is None else 0.0
    return tl.load(keys + place, inside, other), tl.load(values + place, inside, other)


@triton.jit
def _add_block(
    q, k, v, visible, best, total, mixed, scale, softcap,
    HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a block of keys and values to a partial softmax."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if HAS_SOFTCAP:
        scores = _cap(scores, scale, softcap)
        scale = 1.0
    if visible is not None:
        scores = tl.where(visible, scores, float("-inf"))
    newest = tl.maximum(best, tl.ceil(tl.max(scores, 1) * scale))
    finite = tl.where(newest == float("-inf"), 0.0, newest)
    weights = tl.exp2(tl.fma(scores, scale, -finite[:, None]))
    decay = _power(best - finite)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision=PRECISION)
    if v.dtype != tl.float32:  # the sum of 64 such multiples of at most 1 is exact
        weights = (weights + _ROUNDING) - _ROUNDING
    return newest, total * decay + tl.sum(weights, 1), mixed


@triton.jit
def _merge(one_best, one_sum, one, other_best, other_sum, other):
    """Two partial softmaxes as one: factors are powers of two, so only the sums are rounded."""
    newest = tl.maximum(one_best, other_best)
    finite = tl.where(newest == float("-inf"), 0.0, newest)
    a, b = _power(one_best - finite), _power(other_best - finite)
    return newest, one_sum * a + other_sum * b, one * a[:, None] + other * b[:, None]


@triton.jit
def _store_part(
    mixed_parts, sum_parts, place, is_row, sums, best, total, mixed,
    SIZE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, PADDED)
    tl.store(
        mixed_parts + place[:, None] * SIZE + column[None, :], mixed,
        mask=is_row[:, None] & (column < SIZE)[None, :],
    )  # fmt: skip
    tl.store(sum_parts + place, best, mask=is_row)
    tl.store(sum_parts + sums + place, total, mask=is_row)


@triton.jit
def _load_part(
    mixed_parts, sum_parts, place, is_row, sums, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    """A stored partial softmax, an empty one for other rows."""
    column = tl.arange(0, PADDED)
    mixed = tl.load(
        mixed_parts + place[:, None] * SIZE + column[None, :],
        mask=is_row[:, None] & (column < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    best = tl.load(sum_parts + place, mask=is_row, other=float("-inf"))
    total = tl.load(sum_parts + sums + place, mask=is_row, other=0.0)
    return best, total, mixed


@triton.jit
def _store_result(
    result, place, is_row, best, total, mixed, sinks, query_head,
    SIZE: tl.constexpr, PADDED: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """mixed / total; zeros where no key is visible."""
    if HAS_SINKS:
        sink = tl.load(sinks + query_head, mask=is_row, other=0.0)
        total, mixed = _add_sink(sink, best, total, mixed)
    store_mean(result, place, is_row, mixed, total, SIZE, PADDED)


@triton.jit
def _cap(scores, scale, softcap):
    """softcap * tanh(scores * scale / softcap), in powers of two."""
    doubled = tl.exp2(scores * (2.0 * _LOG2E * scale / softcap))
    return (softcap * _LOG2E) * (1.0 - 2.0 / (doubled + 1.0))


@triton.jit
def _add_sink(sink, best, total, mixed):
    """A sink adds to the sum and has no value."""
    sink = sink.to(tl.float32) * _LOG2E
    newest = tl.maximum(best, tl.ceil(sink))
    decay = _power(best - newest)
    return total * decay + tl.exp2(sink - newest), mixed * decay[:, None]
