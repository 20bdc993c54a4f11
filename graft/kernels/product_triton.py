"""Products of a few rows with a large matrix in Triton, fused with norm, bias, residual and gate.

With few rows a product takes as long as reading its weights. Each program computes some outputs and
streams their weights once. Where that gives too few programs to fill the GPU, several split the
inputs and write partial sums; the last to finish adds them in a fixed order. The same call gives
the same bits every time.

The fused norm needs no extra pass: y = (x * gain) @ weight.T / rms(x), with the squares summed in
the same loop. (In float16 x * gain must stay below 65504.)
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 64
MAX_BLOCKS = 8192  # of outputs with split inputs
MIN_PROGRAMS = 256  # that fill a GPU


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How one product is divided among programs."""

    outputs: int  # per program
    depth: int  # inputs per iteration
    splits: int  # programs that split the inputs of the same outputs
    warps: int
    stages: int  # of the software pipeline
    dots: bool  # by matrix instructions (16 rows or more), else multiplied and summed


def plan_product(
    rows: int, outputs: int, depth: int, *, gated: bool = False, itemsize: int = 2
) -> ProductPlan:
    """A plan for weights [outputs, depth] of `itemsize` bytes each; gated, twice as many outputs.

    Measured on an H200 (benchmarks/kernels). One or two rows are multiplied and summed,
    in small matrices up to four; more rows use tensor cores.
    """
    few = rows <= 2 or (rows <= 4 and outputs < 2048)
    if few:
        return _plan_sums(rows, outputs, depth, itemsize, gated=gated)
    return _plan_dots(outputs, depth, itemsize, gated=gated)


def _plan_sums(rows: int, outputs: int, depth: int, itemsize: int, *, gated: bool) -> ProductPlan:
    """Every thread reads 16 bytes at a time."""
    height, wide, warps, stages = 2, 2048 // itemsize, 4, 1
    if rows == 1 and depth < 8192:
        height, stages = 2 if gated else 4, 3
    elif rows == 1:
        height = 2 if gated else 8
    elif rows == 2 and (gated or outputs >= 2048):
        wide, warps = wide // 2, 2
    return ProductPlan(height, wide, 1, warps, stages, dots=False)


def _plan_dots(outputs: int, depth: int, itemsize: int, *, gated: bool) -> ProductPlan:
    """Inputs are split until the GPU is full; each split reads at least two blocks."""
    height, stages = (64, 4) if outputs >= 4096 and not gated else (32, 5)
    wide = (128 if depth % 128 == 0 else 64) * 2 // itemsize
    blocks, steps, splits = triton.cdiv(outputs, height), triton.cdiv(depth, wide), 1
    while 2 * splits * blocks < MIN_PROGRAMS and steps >= 4 * splits:
        splits *= 2
    return ProductPlan(height, wide, splits, 4, stages, dots=True)


def product(
    x: Tensor,
    weight: Tensor,
    *,
    norm: tuple[Tensor, float] | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    plan: ProductPlan | None = None,
) -> Tensor:
    """x [N, I] @ weight [O, I].T -> [N, O], N at most 64.

    norm is (weight [I], epsilon) of an RMS norm of x. A residual [N, O] is added to in place and
    returned. With `gated`, weight is gates and ups [2F, I] and the result silu(gate) * up [N, F].
    Calls on one device must not overlap, and the first must not be captured in a graph.
    """
    rows, depth = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    assert rows <= MAX_ROWS, f"at most {MAX_ROWS} rows"
    assert x.is_contiguous(), "rows must be contiguous"
    assert weight.is_contiguous(), "rows must be contiguous"
    assert residual is None or (residual.shape == (rows, outputs) and residual.is_contiguous())
    assert bias is None or not gated, "gates and ups have no bias"
    plan = plan or plan_product(rows, outputs, depth, gated=gated, itemsize=x.itemsize)
    padded = triton.next_power_of_2(max(rows, 16) if plan.dots else rows)
    blocks, blocks_deep = triton.cdiv(outputs, plan.outputs), triton.cdiv(depth, plan.depth)
    y = x.new_empty(rows, outputs) if residual is None else residual
    sums = squares = arrived = y
    if plan.splits > 1:
        assert blocks <= MAX_BLOCKS, f"at most {MAX_BLOCKS} blocks of outputs can be split"
        width, parts = blocks * plan.outputs, 2 if gated else 1
        sums = x.new_empty(parts, plan.splits, padded, width, dtype=torch.float32)
        squares = x.new_empty(plan.splits, padded, blocks, dtype=torch.float32)
        arrived = _counters(x.device)
    gain, epsilon = norm or (x, 0.0)
    _product[(blocks, plan.splits)](
        x, weight, gain, x if bias is None else bias, y, sums, squares, arrived,
        rows, outputs, depth, epsilon,
        ROWS=padded, OUTPUTS=plan.outputs, DEPTH=plan.depth,
        STEPS=triton.cdiv(blocks_deep, plan.splits), SPLITS=plan.splits, STAGES=plan.stages,
        DOTS=plan.dots, EVEN=depth % (plan.depth * plan.splits) == 0, NORMED=norm is not None,
        BIASED=bias is not None, ADDED=residual is not None, GATED=gated, num_warps=plan.warps,
    )  # fmt: skip
    return y


@cache
def _counters(device: torch.device) -> Tensor:
    """Finished programs per block of outputs; zero again after each call."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    assert not capturing, "call `product` once before capturing a graph"
    return torch.zeros(MAX_BLOCKS, dtype=torch.int32, device=device)


@triton.jit(do_not_specialize=["rows"])
def _product(
    x, weight, gain, bias, y, sums, squares, arrived, rows, outputs, depth, epsilon,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr, DOTS: tl.constexpr, EVEN: tl.constexpr,
    NORMED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """A block of outputs, over all inputs or one split of them."""
    block, blocks, split = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    row, output = tl.arange(0, ROWS), block * OUTPUTS + tl.arange(0, OUTPUTS)
    # Rows and outputs beyond the last read the last one and are not stored.
    x_at = x + tl.minimum(row, rows - 1)[:, None] * depth
    weight_at = weight + tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * depth
    first = split * STEPS * DEPTH
    gate, up, mean = _multiply(
        x_at, weight_at, gain, first, outputs, depth, ROWS, OUTPUTS, DEPTH, STEPS, STAGES, DOTS,
        EVEN, NORMED, GATED,
    )  # fmt: skip
    if SPLITS > 1:
        sum_at = sums + (row[:, None] * blocks * OUTPUTS + output[None, :])
        mean_at = squares + row * blocks + block
        sum_step, mean_step = ROWS * blocks * OUTPUTS, ROWS * blocks
        tl.store(sum_at + split * sum_step, gate)
        if GATED:
            tl.store(sum_at + (SPLITS + split) * sum_step, up)
        if NORMED:
            tl.store(mean_at + split * mean_step, mean)
        tl.debug_barrier()
        if tl.atomic_add(arrived + block, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(arrived + block, 0)
        gate = _sum_splits(sum_at, sum_step, SPLITS)
        if GATED:
            up = _sum_splits(sum_at + SPLITS * sum_step, sum_step, SPLITS)
        if NORMED:
            mean = _sum_splits(mean_at, mean_step, SPLITS)

    if NORMED:
        scale = tl.rsqrt(mean + epsilon)[:, None]
        gate, up = gate * scale, up * scale
    if GATED:
        gate *= tl.sigmoid(gate) * up
    known = (row < rows)[:, None] & (output < outputs)[None, :]
    _store(gate, y, bias, known, row[:, None], output[None, :], outputs, BIASED, ADDED)


@triton.jit
def _multiply(
    x_at, weight_at, gain, first, outputs, depth,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr,
    STAGES: tl.constexpr, DOTS: tl.constexpr, EVEN: tl.constexpr, NORMED: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Products with gates (or all weights) and ups [ROWS, OUTPUTS], sum of squares / depth."""
    column = tl.arange(0, DEPTH)[None, :]
    if DOTS:
        gate = tl.zeros([ROWS, OUTPUTS], tl.float32)
        square = tl.zeros([ROWS, DEPTH], tl.float32)
    else:  # three axes from the start give all blocks the same layout
        x_at, weight_at, column = x_at[:, None, :], weight_at[None, :, :], column[None, :, :]
        gate = tl.zeros([ROWS, OUTPUTS, DEPTH], tl.float32)
        square = tl.zeros([ROWS, 1, DEPTH], tl.float32)
    up = gate
    up_at = weight_at + outputs.to(tl.int64) * depth
    for step in tl.range(0, STEPS, num_stages=STAGES):
        at = first + step * DEPTH + column
        x = _read(x_at + at, at < depth, EVEN)
        if NORMED:
            wide = x.to(tl.float32)
            square += wide * wide
            x = (wide * _read(gain + at, at < depth, EVEN).to(tl.float32)).to(x.dtype)
        gate = _accumulate(gate, x, _read(weight_at + at, at < depth, EVEN), DOTS)
        if GATED:
            up = _accumulate(up, x, _read(up_at + at, at < depth, EVEN), DOTS)
    if not DOTS:
        gate, up, square = tl.sum(gate, 2), tl.sum(up, 2), tl.sum(square, 2)
    return gate, up, tl.sum(square, 1) / depth


@triton.jit
def _read(place, inside, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(place)
    else:
        return tl.load(place, inside, other=0.0)


@triton.jit
def _accumulate(total, x, weight, DOTS: tl.constexpr):
    """total + x times weight: dots, or elementwise products to be summed later."""
    if DOTS:
        return tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    else:
        return total + x.to(tl.float32) * weight.to(tl.float32)


@triton.jit
def _sum_splits(place, step, SPLITS: tl.constexpr):
    """The sum over all splits, in order; bypasses the L1 cache, which may be stale."""
    total = tl.load(place, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        total += tl.load(place + split * step, cache_modifier=".cg")
    return total


@triton.jit
def _store(result, y, bias, known, row, output, outputs, BIASED: tl.constexpr, ADDED: tl.constexpr):
    place = y + row * outputs + output
    if BIASED:
        result += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)
    if ADDED:
        result += tl.load(place, known, other=0.0).to(tl.float32)
    tl.store(place, result, known)
