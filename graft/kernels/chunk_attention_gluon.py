"""Attention of chunks of prompts on Hopper, with the bits of `split_attention_triton`.

A program has 64 query rows of one key head. The matrix units compute the scores of the next block
of keys while this block's softmax runs; Triton's own pipeline waits for them. Keys and values come
by bulk copies (TMA), so all keys of a task lie in consecutive cache rows. Blocks, splits, rounding
and the order of sums are those of `split_attention_triton._attend`.
"""

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from graft.kernels.split_plan import (
    BLOCK,
    EXTENT_COLUMNS,
    MIN_SPLIT,
    SPLITS_PER_DOUBLING,
    TASK_COLUMNS,
    max_split,
)

if TYPE_CHECKING:
    from graft.kernels.split_attention_triton import PlacedSplits

TILE = 64  # query rows of a program: one warp group's
STAGES = 3  # blocks of keys and values in shared memory
SIZE = 128  # of heads; smaller ones are faster in Triton
_KEYS = gl.constexpr(BLOCK)
_TILE = gl.constexpr(TILE)
_STAGES = gl.constexpr(STAGES)
_MIN_SPLIT = gl.constexpr(MIN_SPLIT)
_PER_DOUBLING = gl.constexpr(SPLITS_PER_DOUBLING)
_TASK = gl.constexpr(TASK_COLUMNS)
_EXTENT = gl.constexpr(EXTENT_COLUMNS)
_ROUNDING = gl.constexpr(48.0)
_synchronise = getattr(gl, "thread_barrier", None) or gl.barrier  # renamed in Triton 3.7


@cache
def runs_on(device: torch.device, size: int, dtype: torch.dtype) -> bool:
    """Whether this kernel computes heads of this size and dtype on a device."""
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9  # noqa: PLR2004
    return is_hopper and size == SIZE and dtype in (torch.bfloat16, torch.float16)


def attend_chunks(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    result: Tensor,
    plan: "PlacedSplits",
    scale: float,
) -> None:
    """Write the results of the nodes of `plan.chunks`. `scale` is for powers of two."""
    _, heads, size = query.shape
    kv_heads, rows, _ = keys.shape
    kind = gl.bfloat16 if query.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([BLOCK, size], kind)
    blocks = (
        TensorDescriptor.from_tensor(each.view(kv_heads * rows, size), [BLOCK, size], layout)
        for each in (keys, values)
    )
    _attend_chunks[(len(plan.chunks), kv_heads)](
        query, *blocks, result, plan.extents, plan.chunks, rows, scale,
        GROUP=heads // kv_heads, HEADS=heads, SIZE=size, LONGEST=max_split(kv_heads), num_warps=4,
    )  # fmt: skip


@gluon.jit
def _power(exponent):
    """2 to a whole number of at most 0, exactly; 0 below the smallest normal number."""
    whole = gl.maximum(exponent, -127.0).to(gl.int32)
    return ((whole + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def _is_border(block, LONGEST: gl.constexpr):
    """Whether a split begins at this block; see `split_plan.split_blocks`."""
    size = block * 0 + _MIN_SPLIT
    doubled: gl.constexpr = 2 * _PER_DOUBLING
    for power in gl.static_range(1, 24):
        if (_MIN_SPLIT << power) <= LONGEST:
            size = gl.where(
                doubled * (_MIN_SPLIT << (power - 1)) <= block, _MIN_SPLIT << power, size
            )
    return block % size == 0


@gluon.jit
def _merge(one_best, one_sum, one, other_best, other_sum, other, ROWS: gl.constexpr):
    """Two partial softmaxes as one: factors are powers of two, so only the sums are rounded."""
    newest = gl.maximum(one_best, other_best)
    finite = gl.where(newest == float("-inf"), 0.0, newest)
    a, b = _power(one_best - finite), _power(other_best - finite)
    total = one_sum * a + other_sum * b
    a, b = gl.convert_layout(a, ROWS), gl.convert_layout(b, ROWS)
    return newest, total, one * a[:, None] + other * b[:, None]


@gluon.jit
def _load_block(keys, values, key_blocks, value_blocks, arrived, block, stop, base):
    """Start the copies of a block, if it is before `stop`."""
    stage = block % _STAGES
    is_there = block < stop
    signal = arrived.index(stage)
    row = base + block * _KEYS
    hopper.mbarrier.expect(signal, 2 * keys.block_type.nbytes, pred=is_there)
    hopper.tma.async_copy_global_to_shared(
        keys, [row, 0], signal, key_blocks.index(stage), pred=is_there
    )
    hopper.tma.async_copy_global_to_shared(
        values, [row, 0], signal, value_blocks.index(stage), pred=is_there
    )


@gluon.jit
def _clear_rows(block, first, LAYOUT: gl.constexpr):
    """Zero the rows of a block from `first` on: others' or never written, perhaps not numbers."""
    PART: gl.constexpr = 16
    for number in gl.static_range(_KEYS // PART):
        part = block.slice(PART * number, PART)
        row = PART * number + gl.arange(0, PART, gl.SliceLayout(1, LAYOUT))
        held = part.load(LAYOUT)
        part.store(gl.where((row < first)[:, None], held, 0.0))
    hopper.fence_async_shared()


@gluon.jit
def _place(first_row, row, head, GROUP: gl.constexpr, HEADS: gl.constexpr):
    """Query rows as rows of [N, H]."""
    row += first_row
    return (row // GROUP).to(gl.int64) * HEADS + head * GROUP + row % GROUP


@gluon.jit(do_not_specialize=["cache_rows"], do_not_specialize_on_alignment=["tasks", "extents"])
def _attend_chunks(
    query, keys, values, result, extents, tasks, cache_rows, scale,
    GROUP: gl.constexpr, HEADS: gl.constexpr, SIZE: gl.constexpr, LONGEST: gl.constexpr,
):  # fmt: skip
    """One task for one key head; the columns of a task are those of `split_plan`."""
    dtype: gl.constexpr = query.dtype.element_ty
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    MIXED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, MIXED, 2)
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SIZE, SIZE // 8], [4, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    MIXED_ROW: gl.constexpr = gl.SliceLayout(1, MIXED)
    task = tasks + gl.program_id(0) * _TASK
    head = gl.program_id(1)
    first_row, rows = gl.load(task), gl.load(task + 1)
    if rows == 0:
        return
    extent, committed, first_node = gl.load(task + 6), gl.load(task + 8), gl.load(task + 9)
    base = head * cache_rows + gl.load(extents + extent * _EXTENT + 1)

    queries = gl.allocate_shared_memory(
        dtype, [_TILE, SIZE], gl.NVMMASharedLayout.get_default_for([_TILE, SIZE], dtype)
    )
    key_blocks = gl.allocate_shared_memory(dtype, [_STAGES, _KEYS, SIZE], keys.layout)
    value_blocks = gl.allocate_shared_memory(dtype, [_STAGES, _KEYS, SIZE], values.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for number in gl.static_range(_STAGES):
        hopper.mbarrier.init(arrived.index(number), count=1)

    row = gl.arange(0, _TILE, ROW)
    is_row = row < rows
    seen = committed + gl.where(is_row, (first_row + row) // GROUP - first_node + 1, 0)
    last_seen = gl.max(seen, 0)
    free = gl.min(gl.where(is_row, seen, last_seen), 0) // _KEYS
    stop = (last_seen + _KEYS - 1) // _KEYS
    for number in gl.static_range(_STAGES):
        _load_block(keys, values, key_blocks, value_blocks, arrived, number, stop, base)

    loaded = gl.arange(0, _TILE, gl.SliceLayout(1, LOADED))
    column = gl.arange(0, SIZE, gl.SliceLayout(0, LOADED))
    place = _place(first_row, loaded, head, GROUP, HEADS)
    queries.store(
        gl.load(query + place[:, None] * SIZE + column[None, :], (loaded < rows)[:, None], 0.0)
    )
    hopper.fence_async_shared()

    whole_best = gl.full([_TILE], float("-inf"), gl.float32, ROW)
    whole_sum = gl.full([_TILE], 0.0, gl.float32, ROW)
    whole = gl.full([_TILE, SIZE], 0.0, gl.float32, MIXED)
    best, total, mixed = whole_best, whole_sum, whole
    zeros = gl.full([_TILE, _KEYS], 0.0, gl.float32, SCORES)
    hopper.mbarrier.wait(arrived.index(0), 0)
    scores = hopper.warpgroup_mma(
        queries, key_blocks.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    scores = hopper.warpgroup_mma_wait(0, deps=[scores])
    for block in range(0, stop):
        # The last block's scores are computed twice: a branch would wait for them.
        following = gl.minimum(block + 1, stop - 1)
        stage = following % _STAGES
        hopper.mbarrier.wait(arrived.index(stage), (following // _STAGES) & 1)
        upcoming = hopper.warpgroup_mma(
            queries, key_blocks.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        if (block > 0) & _is_border(block, LONGEST):
            whole_best, whole_sum, whole = _merge(
                whole_best, whole_sum, whole, best, total, mixed, MIXED_ROW
            )
            best = gl.full([_TILE], float("-inf"), gl.float32, ROW)
            total = gl.full([_TILE], 0.0, gl.float32, ROW)
            mixed = gl.full([_TILE, SIZE], 0.0, gl.float32, MIXED)
        if block >= free:
            index = block * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(0, SCORES))
            scores = gl.where(index[None, :] < seen[:, None], scores, float("-inf"))
        if (block == stop - 1) & (last_seen % _KEYS > 0):
            _clear_rows(value_blocks.index(block % _STAGES), last_seen - block * _KEYS, LOADED)
            _synchronise()
        newest = gl.maximum(best, gl.ceil(gl.max(scores, 1) * scale))
        finite = gl.where(newest == float("-inf"), 0.0, newest)
        weights = gl.exp2(gl.fma(scores, zeros + scale, zeros - finite[:, None]))
        decay = _power(best - finite)
        best, total = newest, total * decay + gl.sum((weights + _ROUNDING) - _ROUNDING, 1)
        mixed = mixed * gl.convert_layout(decay, MIXED_ROW)[:, None]
        adding = hopper.warpgroup_mma(
            gl.convert_layout(weights.to(dtype), WEIGHTS), value_blocks.index(block % _STAGES),
            mixed, is_async=True,
        )  # fmt: skip
        scores, mixed = hopper.warpgroup_mma_wait(0, deps=[upcoming, adding])
        _synchronise()
        _load_block(keys, values, key_blocks, value_blocks, arrived, block + _STAGES, stop, base)

    _, whole_sum, whole = _merge(whole_best, whole_sum, whole, best, total, mixed, MIXED_ROW)
    total = gl.convert_layout(whole_sum, MIXED_ROW)
    final = whole / gl.where(total == 0.0, 1.0, total)[:, None]
    stored = gl.arange(0, _TILE, MIXED_ROW)
    column = gl.arange(0, SIZE, gl.SliceLayout(0, MIXED))
    place = _place(first_row, stored, head, GROUP, HEADS)
    gl.store(
        result + place[:, None] * SIZE + column[None, :], final.to(dtype), (stored < rows)[:, None]
    )
