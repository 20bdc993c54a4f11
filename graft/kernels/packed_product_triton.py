"""Products with quantised matrices in Triton, with the bits of products with their dense form.

A weight is widened to the dtype of x where it is used: an FP8 code is exact there and its output's
scale multiplies the sum, or its block's scale multiplies the code; a code of 4 bits is
`(code - zero) * scale`, rounded once. So a product has the order of summation of `product_triton`
and the same bits for a row in any call, and long prompts use the dense form in a library's product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.fragment_matrix import OUTPUTS, WIDTH, FragmentMatrix
from graft.kernels.launch import overlapped, wait
from graft.kernels.packed_matrix import BLOCK, PackedMatrix
from graft.kernels.product_triton import (
    ProductPlan,
    accumulate,
    launch_shape,
    store_product,
    tile_of,
    zero_sums,
)

# A 16-bit float whose last mantissa bits count ones: its bits, and its value.
MAGIC = {torch.float16: (0x6400, 1024), torch.bfloat16: (0x4300, 128)}
_WIDTH = tl.constexpr(WIDTH)
_TILE = tl.constexpr(OUTPUTS * WIDTH)


def packed_plans(matrix: PackedMatrix, rows: int) -> list[ProductPlan]:
    """Plans worth measuring, the likely best first."""
    tile = tile_of(rows)
    if tile > 32:  # noqa: PLR2004
        found = [(64, 128, 4, 4, True), (128, 128, 8, 3, True)]
    else:
        found = [(64, 128, 4, 4, True), (16, 128, 2, 8, False), (32, 128, 4, 6, False)]
        if matrix.factors is not None:
            found += [(16, 256, 2, 6, False), (64, 256, 4, 4, True)]
    return [ProductPlan(tile, *each) for each in found]


def packed_product(
    x: Tensor,
    matrix: PackedMatrix,
    *,
    bias: Tensor | None = None,
    gated: bool = False,
    segments: int = 1,
    out: Tensor | None = None,
    plan: ProductPlan,
) -> Tensor:
    """See `product_triton.product`."""
    rows, depth = x.shape
    outputs = matrix.shape[0] // 2 if gated else matrix.shape[0]
    y, grid, span = launch_shape(x, outputs, segments, out, plan)
    magic, ones = MAGIC[matrix.dtype]
    _packed_product[grid](
        x, matrix.codes, matrix.scales, matrix.zeros, x if bias is None else bias, y,
        rows, outputs, matrix.shape[0], depth, span,
        ROWS=plan.rows, OUTPUTS=plan.outputs, STAGES=plan.stages,
        DEPTH=2 * matrix.codes.shape[2] if matrix.zeros is not None else plan.depth,
        GROUP=matrix.group, FOUR_BITS=matrix.zeros is not None, AFTER=matrix.factors is not None,
        MAGIC=magic, ONES=ones, SWAPPED=plan.swapped, BIASED=bias is not None, GATED=gated,
        PARTIAL=segments > 1, COMPILED=x.is_cuda, num_warps=plan.warps, **overlapped(x.device),
    )  # fmt: skip
    return y


def widen(matrix: PackedMatrix) -> Tensor:
    """`PackedMatrix.dense` in one pass over the codes."""
    outputs, depth = matrix.shape
    dense = torch.empty(outputs, depth, dtype=matrix.dtype, device=matrix.device)
    four_bits = matrix.zeros is not None
    block = 2 * matrix.codes.shape[2] if four_bits else BLOCK
    magic, ones = MAGIC[matrix.dtype]
    _widen[(triton.cdiv(outputs, 32), triton.cdiv(depth, block))](
        matrix.codes, matrix.scales, matrix.zeros, dense, outputs, depth,
        OUTPUTS=32, DEPTH=block, GROUP=matrix.group, FOUR_BITS=four_bits,
        AFTER=matrix.factors is not None, MAGIC=magic, ONES=ones, **overlapped(matrix.device),
    )  # fmt: skip
    return dense


def widen_fragments(matrix: FragmentMatrix) -> Tensor:
    """`PackedMatrix.dense` of a matrix in fragment order."""
    outputs, depth = matrix.shape
    dense = torch.empty(outputs, depth, dtype=matrix.dtype, device=matrix.device)
    codes = matrix.codes if matrix.four_bits else matrix.codes.view(torch.float8_e4m3fn)
    tiles, parts, _ = codes.shape
    together = next(each for each in (4, 2, 1) if parts % each == 0)
    _widen_fragments[(tiles, parts // together)](
        codes, matrix.scales, dense, outputs, depth,
        PARTS=together, GROUP=matrix.group, FOUR_BITS=matrix.four_bits,
        AFTER=matrix.factors is not None, MAGIC=MAGIC[matrix.dtype][0],
        **overlapped(matrix.device),
    )  # fmt: skip
    return dense


def scale_sums(sums: Tensor, factors: Tensor, bias: Tensor | None, like: Tensor) -> Tensor:
    """Sums [N, O] times `PackedMatrix.factors`, plus a bias, rounded to the dtype of `like`."""
    rows, outputs = sums.shape
    y = like.new_empty(rows, outputs)
    block = min(triton.next_power_of_2(outputs), 2048)
    _scale_sums[(rows, triton.cdiv(outputs, block))](
        sums, factors, sums if bias is None else bias, y, outputs,
        BLOCK=block, BIASED=bias is not None, COMPILED=sums.is_cuda, **overlapped(sums.device),
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["rows"])
def _packed_product(
    x, codes, scales, zeros, bias, y, rows, outputs, columns, depth, span,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STAGES: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, FOUR_BITS: tl.constexpr, AFTER: tl.constexpr, MAGIC: tl.constexpr,
    ONES: tl.constexpr, SWAPPED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    PARTIAL: tl.constexpr, COMPILED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of rows and outputs, over all inputs or one segment of them."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    segment = tl.program_id(2)
    first = segment * span
    gate = tl.minimum(output, outputs - 1).to(tl.int64)  # those beyond the last are not stored
    other = gate + outputs
    wait(PDL)
    is_row = (row < rows)[:, None]
    x_at = x + row[:, None].to(tl.int64) * depth
    last = tl.minimum(first + span, depth)
    total = zero_sums(ROWS, OUTPUTS, SWAPPED)
    up = total
    for step in tl.range(0, tl.cdiv(last - first, DEPTH), num_stages=STAGES):
        start = first + step * DEPTH
        if FOUR_BITS:
            HALF: tl.constexpr = DEPTH // 2
            at = start + tl.arange(0, HALF)[None, :]
            low = tl.load(x_at + at, is_row, other=0.0)
            high = tl.load(x_at + at + HALF, is_row, other=0.0)
            pairs, scale, zero = _load_pairs(
                codes, scales, zeros, gate, start, columns, DEPTH, GROUP, ONES
            )
            total = accumulate(total, low, _four_bits(pairs & 15, scale, zero, MAGIC), SWAPPED)
            total = accumulate(total, high, _four_bits(pairs >> 4, scale, zero, MAGIC), SWAPPED)
            if GATED:
                pairs, scale, zero = _load_pairs(
                    codes, scales, zeros, other, start, columns, DEPTH, GROUP, ONES
                )
                up = accumulate(up, low, _four_bits(pairs & 15, scale, zero, MAGIC), SWAPPED)
                up = accumulate(up, high, _four_bits(pairs >> 4, scale, zero, MAGIC), SWAPPED)
        else:
            at = start + tl.arange(0, DEPTH)[None, :]
            inside = at < last
            values = tl.load(x_at + at, is_row & inside, other=0.0)
            weight = _load_fp8(
                codes, scales, gate, at, inside, start, columns, depth, GROUP, AFTER, values.dtype
            )
            total = accumulate(total, values, weight, SWAPPED)
            if GATED:
                weight = _load_fp8(
                    codes, scales, other, at, inside, start, columns, depth, GROUP, AFTER,
                    values.dtype,
                )  # fmt: skip
                up = accumulate(up, values, weight, SWAPPED)
    if AFTER:
        total = _scaled(total, _factors(scales + gate, SWAPPED), COMPILED)
        if GATED:
            up = _scaled(up, _factors(scales + other, SWAPPED), COMPILED)
    store_product(
        total, up, x, bias, y, row, output, rows, outputs, segment, SWAPPED, BIASED, GATED, PARTIAL
    )


@triton.jit
def _widen(
    codes, scales, zeros, dense, outputs, depth,
    OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, FOUR_BITS: tl.constexpr,
    AFTER: tl.constexpr, MAGIC: tl.constexpr, ONES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of weights."""
    output = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    start = tl.program_id(1) * DEPTH
    known = (output < outputs)[:, None]
    output = tl.minimum(output, outputs - 1)
    wait(PDL)
    if FOUR_BITS:
        HALF: tl.constexpr = DEPTH // 2
        pairs, scale, zero = _load_pairs(
            codes, scales, zeros, output, start, outputs, DEPTH, GROUP, ONES
        )
        place = dense + output[:, None] * depth + start + tl.arange(0, HALF)[None, :]
        tl.store(place, _four_bits(pairs & 15, scale, zero, MAGIC), known)
        tl.store(place + HALF, _four_bits(pairs >> 4, scale, zero, MAGIC), known)
    else:
        at = start + tl.arange(0, DEPTH)[None, :]
        inside = at < depth
        weight = _load_fp8(
            codes, scales, output, at, inside, start, outputs, depth, GROUP, AFTER,
            dense.dtype.element_ty,
        )  # fmt: skip
        tl.store(dense + output[:, None] * depth + at, weight, known & inside)


@triton.jit
def _widen_fragments(
    codes, scales, dense, outputs, depth, PARTS: tl.constexpr, GROUP: tl.constexpr,
    FOUR_BITS: tl.constexpr, AFTER: tl.constexpr, MAGIC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """PARTS tiles of a matrix in fragment order, see `fragment_matrix.restore`."""
    ROWS: tl.constexpr = _TILE // _WIDTH
    SPAN: tl.constexpr = 2 * _WIDTH if FOUR_BITS else _WIDTH  # inputs of a tile
    tile, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * PARTS
    wait(PDL)
    place = tile * tl.num_programs(1) * PARTS + first
    stored = tl.load(codes + place * _TILE + tl.arange(0, PARTS * _TILE))
    parts = tl.reshape(stored, [PARTS, 2, 8, 4, 2, 2, 2, 2])
    code = tl.reshape(tl.permute(parts, (7, 2, 0, 1, 4, 5, 3, 6)), [ROWS, PARTS * _WIDTH])
    output = (tile * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, PARTS * _WIDTH)[None, :]
    at = (first + column // _WIDTH) * SPAN + column % _WIDTH
    scale_at = scales + (at // GROUP).to(tl.int64) * outputs + output
    target = dense + output * depth + at
    dtype = dense.dtype.element_ty
    if FOUR_BITS:
        word = tl.load(scale_at)
        scale = (word & 0xFFFF).to(tl.int16).to(dtype, bitcast=True)
        zero = (word >> 16).to(tl.int16).to(dtype, bitcast=True)
        tl.store(target, _four_bits(code & 15, scale, zero, MAGIC))
        tl.store(target + _WIDTH, _four_bits(code >> 4, scale, zero, MAGIC))
    elif AFTER:
        tl.store(target, code.to(dtype))
    else:
        tl.store(target, (code.to(tl.float32) * tl.load(scale_at)).to(dtype))


@triton.jit
def _scale_sums(
    sums, factors, bias, y, outputs, BLOCK: tl.constexpr, BIASED: tl.constexpr,
    COMPILED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A part of a row."""
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * outputs + output
    known = output < outputs
    factor = tl.load(factors + output, known, other=0.0)
    wait(PDL)
    total = _scaled(tl.load(sums + place, known, other=0.0), factor, COMPILED)
    if BIASED:
        total += tl.load(bias + output, known, other=0.0).to(tl.float32)
    tl.store(y + place, total.to(y.dtype.element_ty), known)


@triton.jit
def _load_pairs(
    codes, scales, zeros, output, start, columns, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    ONES: tl.constexpr,
):  # fmt: skip
    """Codes [OUTPUTS, DEPTH / 2] of the block at input `start`, their scales and zeros."""
    HALF: tl.constexpr = DEPTH // 2
    place = (start // DEPTH).to(tl.int64) * columns + output
    pairs = tl.load(codes + place[:, None] * HALF + tl.arange(0, HALF)[None, :])
    group = (start // GROUP).to(tl.int64) * columns + output
    return pairs, tl.load(scales + group)[:, None], tl.load(zeros + group)[:, None] + ONES


@triton.jit
def _four_bits(codes, scale, zero, MAGIC: tl.constexpr):
    """(code - zero) * scale: a code is put into the last bits of a float, whose value is part of
    `zero`."""
    floats = (codes.to(tl.int16) | MAGIC).to(scale.dtype, bitcast=True)
    return (floats - zero) * scale


@triton.jit
def _load_fp8(
    codes, scales, output, at, inside, start, columns, depth, GROUP: tl.constexpr,
    AFTER: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Weights [OUTPUTS, DEPTH] at input `start`, without a factor of their sums."""
    code = tl.load(codes + output[:, None] * depth + at, inside, other=0.0)
    if AFTER:
        return code.to(DTYPE)
    else:
        group = (start // GROUP).to(tl.int64) * columns + output
        return (code.to(tl.float32) * tl.load(scales + group)[:, None]).to(DTYPE)


@triton.jit
def _scaled(total, factors, COMPILED: tl.constexpr):
    """Sums times factors, rounded: the compiler must not fuse this with adding a bias, which it
    does or not depending on the layout. The interpreter has no assembler."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [total, factors], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        return total * factors


@triton.jit
def _factors(place, SWAPPED: tl.constexpr):
    if SWAPPED:
        return tl.load(place)[:, None]
    else:
        return tl.load(place)[None, :]
