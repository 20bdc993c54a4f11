"""Attention of one level of a head's draft on a GPU (hybrid tree attention: LongSpec, section 3.3).

A program computes one task of the plan for one key head and loads the keys once for all queries of
the head's group. Committed keys need no mask. Draft rows follow the task's last committed key;
which of them a node sees is stored as bits. A row's partial results are merged by their
log-sum-exp in fp32. Everything that changes between drafts is read from device memory.

The sums depend on the plan, so drafts may differ in their last bits from step to step. The target's
attention may not: `split_attention_triton`.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import multiprocessors
from graft.kernels.level_plan import COLUMNS

_LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Launch parameters: keys per iteration, warps, stages, programs per multiprocessor."""

    keys: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class PlacedLevel:
    """A plan in device memory, padded with empty tasks for a captured graph; levels of the same
    width share it. `above` counts the draft rows of earlier levels; None: no draft row is seen."""

    tile: int
    tasks: Tensor  # [T, COLUMNS] int32
    parts: Tensor  # [N] int32
    max_parts: int
    above: int | None = 0


@cache
def tasks_wanted(
    tile: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Tasks of `tile` query rows per key head that keep the device busy."""
    programs = tiles_for(tile, size, dtype).programs
    return max(1, programs * multiprocessors(device) // kv_heads)


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
    query: Tensor, keys: Tensor, values: Tensor, plan: PlacedLevel, bits: Tensor, *, scale: float
) -> Tensor:
    """[N, H, D] by a plan on the device; `bits` [N] int64 are the draft rows that a node sees."""
    nodes, heads, size = query.shape
    kv_heads = keys.shape[0]
    assert query.is_contiguous(), "queries must be contiguous"
    assert keys.stride() == values.stride(), "keys and values must have the same layout"
    assert keys.stride()[1:] == (size, 1), "a cache row must be contiguous"
    tiles = tiles_for(plan.tile, size, query.dtype)
    result = torch.empty_like(query)
    parts = plan.max_parts if plan.max_parts > 1 else 0
    mixed = query.new_empty((parts, nodes, heads, size), dtype=torch.float32)
    sums = query.new_empty((parts, nodes, heads), dtype=torch.float32)
    options = dict(HEADS=heads, SIZE=size, PADDED=triton.next_power_of_2(size))
    _attend[(len(plan.tasks), kv_heads)](
        query, keys, values, result, mixed, sums, plan.tasks, bits, keys.stride(0), nodes, scale,
        -1 if plan.above is None else plan.above,
        GROUP=heads // kv_heads, TILE=plan.tile, KEYS=tiles.keys, COLUMNS=COLUMNS,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiles.warps, num_stages=tiles.stages, **options,
    )  # fmt: skip
    if parts:
        _merge[(nodes, heads)](
            mixed, sums, plan.parts, result, nodes, PARTS=16, num_warps=4, **options
        )
    return result


# The inputs of a draft are packed (`graph_inputs`): another alignment does not recompile.
@triton.jit(do_not_specialize=["nodes", "above"], do_not_specialize_on_alignment=["tasks", "bits"])
def _attend(
    query, keys, values, result, mixed_parts, sum_parts, tasks, bits, head_stride, nodes, scale,
    above, HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One task for one key head; the columns of a task are those of `level_plan`."""
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
    tree = tl.where(above < 0, 0, tl.load(task + 4))
    first = tl.load(task + 5) - above

    best = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, PADDED), tl.float32)
    offset = tl.arange(0, KEYS)
    for key in tl.range(0, count // KEYS * KEYS, KEYS):
        best, total, mixed = _add_visible_keys(
            q, keys, values, key + offset, best, total, mixed, scale, SIZE, PADDED, PRECISION
        )
    for key in tl.range(count // KEYS * KEYS, count, KEYS, num_stages=1):
        index = key + offset
        exists = index < count
        best, total, mixed = _add_masked_keys(
            q, keys, values, index, exists, exists[None, :], best, total, mixed, scale,
            SIZE, PADDED, PRECISION,
        )  # fmt: skip
    # Later nodes are not ancestors of these.
    last = tl.where(tree > 0, tl.max(tl.where(is_row, node, 0), 0) - first + 1, 0)
    seen = tl.load(bits + node, mask=is_row, other=0)
    for key in tl.range(0, last, KEYS, num_stages=1):
        index = key + offset
        visible = (((seen[:, None] >> index[None, :]) & 1) != 0) & (index < last)[None, :]
        best, total, mixed = _add_masked_keys(
            q, keys, values, count + index, index < last, visible, best, total, mixed, scale,
            SIZE, PADDED, PRECISION,
        )  # fmt: skip

    if tl.load(task + 7) == 1:
        store_mean(result, place, is_row, mixed, total, SIZE, PADDED)
    else:
        place += tl.load(task + 6).to(tl.int64) * nodes * HEADS
        store_mean(mixed_parts, place, is_row, mixed, total, SIZE, PADDED)
        tl.store(sum_parts + place, best + tl.log2(total), mask=is_row)  # -inf without keys


@triton.jit
def _add_visible_keys(
    q, keys, values, index, best, total, mixed, scale,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys that every row sees to the partial softmax."""
    column = tl.arange(0, PADDED)
    where = index[:, None] * SIZE + column[None, :]
    inside = None if SIZE == PADDED else (column < SIZE)[None, :]
    k = tl.load(keys + where, mask=inside)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    newest = tl.maximum(best, tl.max(scores, 1) * (scale * _LOG2E))
    weights = tl.exp2(scores * (scale * _LOG2E) - newest[:, None])
    decay = tl.exp2(best - newest)
    v = tl.load(values + where, mask=inside)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision=PRECISION)
    return newest, total * decay + tl.sum(weights, 1), mixed


@triton.jit
def _add_masked_keys(
    q, keys, values, index, exists, visible, best, total, mixed, scale,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys of which a row may see some, or none."""
    column = tl.arange(0, PADDED)
    where = index[:, None] * SIZE + column[None, :]
    inside = exists[:, None] & (column < SIZE)[None, :]
    k = tl.load(keys + where, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2E)
    scores = tl.where(visible, scores, float("-inf"))
    newest = tl.maximum(best, tl.max(scores, 1))
    finite = tl.where(newest == float("-inf"), 0.0, newest)
    weights = tl.exp2(scores - finite[:, None])
    decay = tl.exp2(best - finite)
    v = tl.load(values + where, mask=inside, other=0.0)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * decay[:, None], input_precision=PRECISION)
    return newest, total * decay + tl.sum(weights, 1), mixed


@triton.jit
def store_mean(result, place, is_row, mixed, total, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """mixed / total; zeros where no key is visible."""
    column = tl.arange(0, PADDED)
    final = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        result + place[:, None] * SIZE + column[None, :],
        final.to(result.dtype.element_ty), mask=is_row[:, None] & (column < SIZE)[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=["nodes"], do_not_specialize_on_alignment=["parts"])
def _merge(
    mixed_parts, sum_parts, parts, result, nodes,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
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
    final = mixed / total[:, None]
    tl.store(
        result + place * SIZE + column[None, :],
        final.to(result.dtype.element_ty), mask=(column < SIZE)[None, :],
    )  # fmt: skip
