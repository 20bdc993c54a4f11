"""Products of few rows with quantised matrices on Hopper, with the bits of `packed_product_triton`.

Codes lie in fragment order (`fragment_matrix`). Asynchronous copies bring them, their scales and
the rows into shared memory, several steps of 128 or 256 inputs ahead. A thread reads 16 bytes of
codes at a time and widens them in registers while the matrix units multiply those before. Outputs
are the first operand of the matrix instructions, so a product of one row computes 8, not 64. Sums
add the same inputs in the same order as Triton's.

Nothing is read that may be unwritten: copies beyond a segment or beyond the rows fill with zeros,
weights and rows are copied after the kernel in front has ended, and before that weights are only
brought into the L2 cache. Matrices consist of whole tiles, so there is no padding.
"""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from graft.kernels.fragment_matrix import OUTPUTS, FragmentMatrix
from graft.kernels.launch import overlapped, wait
from graft.kernels.packed_matrix import BLOCK
from graft.kernels.packed_product_triton import MAGIC
from graft.kernels.product_triton import ProductPlan, launch_shape, tile_of

MIN_ROWS = 8  # columns of a matrix instruction
MAX_ROWS = 64  # of a program
ALIGNMENT = 16  # bytes of a copy
LINES = 32  # cache lines of a tile that are asked for before the kernel in front has ended
_BLOCK = gl.constexpr(BLOCK)
_HALF = gl.constexpr(BLOCK // 2)
_OUTPUTS = gl.constexpr(OUTPUTS)
_LINES = gl.constexpr(LINES)
_PART = gl.constexpr(1024)  # bytes of a tile
_synchronise = getattr(gl, "thread_barrier", None) or gl.barrier  # renamed in Triton 3.7

# Four FP8 codes: sign and exponent move to their places, and a power of two corrects the exponent's
# bias. `$2` holds the codes of outputs g (bytes 0 and 2) and g + 8 (bytes 1 and 3).
_FP8_PAIR = """
shr.b32 b, {source}, {shift};
and.b32 b, b, {mask};
lop3.b32 b, {source}, 0x80008000, b, 0xea;
mul.rn.{kind} {target}, b, bias;
"""
# ... times a scale in float32, rounded.
_SCALED_PAIR = {
    torch.bfloat16: """
shl.b32 low, {pair}, 16;
and.b32 high, {pair}, 0xffff0000;
mul.rn.f32 low, low, {scale};
mul.rn.f32 high, high, {scale};
cvt.rn.bf16x2.f32 {target}, high, low;
""",
    torch.float16: """
mov.b32 {{l, h}}, {pair};
cvt.f32.f16 low, l;
cvt.f32.f16 high, h;
mul.rn.f32 low, low, {scale};
mul.rn.f32 high, high, {scale};
cvt.rn.f16x2.f32 {target}, high, low;
""",
}
# Two codes of 4 bits become the last bits of floats; then (code - zero) * scale.
_FOUR_BITS_PAIR = """
shr.b32 a, $4, {shift};
lop3.b32 a, a, 0x000f000f, magic, 0xea;
sub.rn.{kind} a, a, {zero};
mul.rn.{kind} {target}, a, {scale};
"""
_KIND = {torch.bfloat16: "bf16x2", torch.float16: "f16x2"}
_FP8 = {  # shift, mask and 2 ** (difference of the biases)
    torch.bfloat16: (4, "0x07f007f0", "0x7b807b80"),
    torch.float16: (1, "0x3f803f80", "0x5c005c00"),
}


def _widen_fp8(dtype: torch.dtype) -> str:
    """Codes $2 -> $0 and $1."""
    shift, mask, bias = _FP8[dtype]
    pairs = [("a", "$0"), ("$2", "$1")]
    lines = [
        _FP8_PAIR.format(source=source, target=target, shift=shift, mask=mask, kind=_KIND[dtype])
        for source, target in pairs
    ]
    start = f"{{ .reg .b32 a, b, bias;\nmov.b32 bias, {bias};\nshl.b32 a, $2, 8;"
    return start + "".join(lines) + "}"


def _widen_fp8_blocks(dtype: torch.dtype) -> str:
    """Codes $2 and the scales $3 .. $6 of their outputs -> $0 and $1."""
    inner = _widen_fp8(dtype).replace("$0", "p").replace("$1", "q")
    lines = [
        _SCALED_PAIR[dtype].format(pair=pair, target=target, scale=scale)
        for pair, target, scale in (("p", "$0", "$3"), ("q", "$1", "$5"))
    ]
    start = "{ .reg .b32 p, q, low, high;\n.reg .b16 l, h;\n"
    return start + inner + "".join(lines) + "}"


def _widen_four_bits(dtype: torch.dtype) -> str:
    """Pairs of codes $4, scales $5 .. $8 and zeros $9 .. $12 -> low $0, $1 and high $2, $3."""
    places = [(0, "$0", 0), (8, "$1", 2), (4, "$2", 0), (12, "$3", 2)]
    magic = f"0x{MAGIC[dtype][0]:04x}{MAGIC[dtype][0]:04x}"
    lines = [
        _FOUR_BITS_PAIR.format(
            shift=shift, kind=_KIND[dtype], target=target, zero=f"${9 + element}",
            scale=f"${5 + element}",
        )
        for shift, target, element in places
    ]  # fmt: skip
    start = f"{{ .reg .b32 a, magic;\nmov.b32 magic, {magic};"
    return start + "".join(lines) + "}"


def fragment_plans(rows: int, outputs: int) -> list[ProductPlan]:  # noqa: ARG001
    """Plans worth measuring, the likely best first."""
    tile = MIN_ROWS if rows <= MIN_ROWS else min(tile_of(rows), MAX_ROWS)
    if tile > 16:  # noqa: PLR2004
        found = [(64, 128, 4, 3), (64, 128, 4, 4), (128, 128, 8, 3)]
    else:
        found = [(32, 256, 2, 4), (64, 256, 4, 4)]
        found += [(16, 256, 1, 6)] if tile == MIN_ROWS else [(128, 128, 8, 4)]
    return [ProductPlan(tile, *each, swapped=True) for each in found]


def fragment_product(
    x: Tensor,
    matrix: FragmentMatrix,
    *,
    bias: Tensor | None = None,
    gated: bool = False,
    segments: int = 1,
    out: Tensor | None = None,
    plan: ProductPlan,
) -> Tensor:
    """See `product_triton.product`."""
    rows, depth = x.shape
    columns = matrix.shape[0]
    outputs = columns // 2 if gated else columns
    assert x.data_ptr() % ALIGNMENT == 0, "rows must be aligned for copies"
    assert depth == matrix.shape[1], "rows must have the matrix's inputs"
    assert outputs % OUTPUTS == 0, "gates and ups must be whole tiles"
    assert segments == 1 or (bias is None and not gated), "only plain products are cut"
    y, grid, span = launch_shape(x, outputs, segments, out, plan)
    assert span % BLOCK == 0, "segments must be whole blocks"
    _fragment_product[grid](
        x, matrix.codes, matrix.scales.view(torch.int32), x if bias is None else bias, y,
        rows, outputs, columns, depth, span,
        ROWS=min(plan.rows, max(MIN_ROWS, triton.next_power_of_2(rows))),
        TILES=plan.outputs // OUTPUTS, STAGES=plan.stages,
        BLOCKS=plan.depth // BLOCK if span % plan.depth == depth % plan.depth == 0 else 1,
        GATED=gated, BIASED=bias is not None, PARTIAL=segments > 1, **options_of(matrix),
        num_warps=plan.warps, **overlapped(x.device),
    )  # fmt: skip
    return y


def options_of(matrix: FragmentMatrix) -> dict[str, object]:
    """What the kernel is compiled for, of a matrix."""
    after = matrix.factors is not None
    make = _widen_four_bits if matrix.four_bits else _widen_fp8 if after else _widen_fp8_blocks
    return {
        "FOUR_BITS": matrix.four_bits, "AFTER": after, "GROUP": BLOCK if after else matrix.group,
        "WIDEN": make(matrix.dtype),
    }  # fmt: skip


@gluon.jit
def _prefetch(place):
    """Ask for cache lines; the L2 cache is the one that other processors' stores reach."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [place], dtype=gl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@gluon.jit
def _copy_weights(weights, stages, stage, bytes_before, scale_rows, is_there):
    """Start the copies of a stage's codes, and of their scales if they have stages."""
    async_copy.async_copy_global_to_shared(
        stages[0].index(stage), weights[0] + bytes_before, mask=is_there
    )
    if len(stages) > 1:
        # Four scales of a thread lie together: copies of 16 bytes pass by the L1 cache.
        scale_at = gl.max_contiguous(gl.multiple_of(weights[1] + scale_rows, 16), 4)
        async_copy.async_copy_global_to_shared(stages[1].index(stage), scale_at, mask=is_there)


@gluon.jit
def _stages(
    STAGES: gl.constexpr, TILES: gl.constexpr, BLOCKS: gl.constexpr, BYTES: gl.constexpr,
    AFTER: gl.constexpr,
):  # fmt: skip
    """Shared memory for codes, and for scales where they are part of the weights."""
    codes = gl.allocate_shared_memory(
        gl.uint8, [STAGES, TILES, BLOCKS * BYTES], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    if AFTER:
        return (codes,)
    else:
        scales = gl.allocate_shared_memory(
            gl.int32, [STAGES, BLOCKS * TILES * _OUTPUTS], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        return codes, scales


@gluon.jit
def _copy_step(
    gate_at, up_at, row_at, is_row, gate_stages, up_stages, row_stages, step, count, scale_block,
    columns, STAGES: gl.constexpr, BLOCKS: gl.constexpr, BYTES: gl.constexpr, GROUP: gl.constexpr,
    GATED: gl.constexpr,
):  # fmt: skip
    """Start the copies of a step's weights and rows into its stage; zeros beyond the last step."""
    stage, is_there = step % STAGES, step < count
    bytes_before = step * BLOCKS * BYTES
    scale_rows = ((scale_block + step * BLOCKS) * _BLOCK // GROUP).to(gl.int64) * columns
    _copy_weights(gate_at, gate_stages, stage, bytes_before, scale_rows, is_there)
    if GATED:
        _copy_weights(up_at, up_stages, stage, bytes_before, scale_rows, is_there)
    async_copy.async_copy_global_to_shared(
        row_stages.index(stage), row_at + step * BLOCKS * _BLOCK, mask=is_row & is_there
    )
    async_copy.commit_group()


@gluon.jit
def _in_order(codes, TILES: gl.constexpr, BYTES: gl.constexpr, OPERAND: gl.constexpr):
    """Codes [outputs, bytes of an output] as operands, from the bytes of tiles as they are stored.
    The conversion moves nothing, which the compiler verifies. Of four bytes the two in the middle
    are still exchanged: see `_widen_fp8`."""
    parts = codes.reshape([TILES, BYTES // 512, 8, 4, 2, 2, 2, 2]).permute((0, 6, 2, 1, 4, 5, 3, 7))
    return gl.convert_layout(
        parts.reshape([TILES * _OUTPUTS, BYTES // _OUTPUTS]), OPERAND, assert_trivial=True
    )


@gluon.jit
def _multiply(
    total, stages, rows, stage, BLOCK: gl.constexpr, TILES: gl.constexpr, BYTES: gl.constexpr,
    FOUR_BITS: gl.constexpr, AFTER: gl.constexpr, WIDEN: gl.constexpr,
):  # fmt: skip
    """The sums with the products of a block of a stage."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, total.type.layout, 2)
    ROWS: gl.constexpr = gl.DotOperandLayout(1, total.type.layout, 2)
    STORED: gl.constexpr = gl.BlockedLayout([1, 16], [1, 32], [gl.num_warps(), 1], [1, 0])
    SCALE: gl.constexpr = gl.SliceLayout(1, OPERAND)
    held = stages[0].index(stage).slice(BLOCK * BYTES, BYTES, 1).load(STORED)
    found = _in_order(held, TILES, BYTES, OPERAND)
    values = rows.index(stage).slice(BLOCK * _BLOCK, _BLOCK, 1)
    if not AFTER:
        word = stages[1].index(stage).slice(BLOCK * TILES * _OUTPUTS, TILES * _OUTPUTS).load(SCALE)
    if FOUR_BITS:
        zero = (word >> 16) & 0xFFFF
        scale = word & 0xFFFF
        low, high = gl.inline_asm_elementwise(
            WIDEN, "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r",
            [found, (scale | scale << 16)[:, None], (zero | zero << 16)[:, None]],
            dtype=(rows.dtype, rows.dtype), is_pure=True, pack=4,
        )  # fmt: skip
        total = mma_v2(low, values.slice(0, _HALF, 1).permute((1, 0)).load(ROWS), total)
        return mma_v2(high, values.slice(_HALF, _HALF, 1).permute((1, 0)).load(ROWS), total)
    else:
        if AFTER:
            weight = gl.inline_asm_elementwise(
                WIDEN, "=r,=r,r", [found], dtype=rows.dtype, is_pure=True, pack=4
            )
        else:
            weight = gl.inline_asm_elementwise(
                WIDEN, "=r,=r,r,r,r,r,r", [found, word[:, None]], dtype=rows.dtype, is_pure=True,
                pack=4,
            )  # fmt: skip
        return mma_v2(weight, values.permute((1, 0)).load(ROWS), total)


@gluon.jit
def _scaled(total, scale):
    """Sums times their output's scale: see `packed_product_triton._scaled`."""
    return gl.inline_asm_elementwise(
        "mul.rn.f32 $0, $1, $2;", "=f,f,f", [total, scale.to(gl.float32, bitcast=True)[:, None]],
        dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _store(
    total, up, x, scales, bias, y, output, row, rows, outputs, segment,
    AFTER: gl.constexpr, BIASED: gl.constexpr, GATED: gl.constexpr, PARTIAL: gl.constexpr,
):  # fmt: skip
    """See `product_triton.store_product`."""
    dtype: gl.constexpr = x.dtype.element_ty
    is_output = output < outputs
    if AFTER:
        total = _scaled(total, gl.load(scales + output, is_output, 0))
        if GATED:
            up = _scaled(up, gl.load(scales + outputs + output, is_output, 0))
    known = is_output[:, None] & (row < rows)[None, :]
    place = y + row[None, :].to(gl.int64) * outputs + output[:, None]
    if PARTIAL:
        gl.store(place + segment.to(gl.int64) * rows * outputs, total, known)
    else:
        if BIASED:
            total += gl.load(bias + output, is_output, 0.0).to(gl.float32)[:, None]
        result = total.to(dtype)
        if GATED:
            gate = result.to(gl.float32)
            silu = gate * (1 / (1 + gl.exp(-gate)))
            result = (silu * up.to(dtype).to(gl.float32)).to(dtype)
        gl.store(place, result.to(y.dtype.element_ty), known)


@gluon.jit(do_not_specialize=["rows"])
def _fragment_product(
    x, codes, scales, bias, y, rows, outputs, columns, depth, span,
    ROWS: gl.constexpr, TILES: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    GATED: gl.constexpr, BIASED: gl.constexpr, PARTIAL: gl.constexpr, FOUR_BITS: gl.constexpr,
    AFTER: gl.constexpr, GROUP: gl.constexpr, WIDEN: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """A block of rows and outputs, over all inputs or one segment of them."""
    WARPS: gl.constexpr = gl.num_warps()
    BYTES: gl.constexpr = _PART if FOUR_BITS else 2 * _PART  # of a tile and a block of inputs
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    STORED: gl.constexpr = gl.BlockedLayout([1, 16], [1, 32], [WARPS, 1], [1, 0])
    LINE: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    COPIED: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    SCALED: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    DEPTH: gl.constexpr = BLOCKS * _BLOCK  # inputs of a step

    segment = gl.program_id(2)
    first = segment * span
    count = (gl.minimum(first + span, depth) - first) // DEPTH
    first_tile = gl.program_id(1) * TILES
    last_tile = outputs // _OUTPUTS - 1  # those beyond it read it again and are not stored
    tile_bytes = (depth // _BLOCK).to(gl.int64) * BYTES
    up_bytes = (outputs // _OUTPUTS).to(gl.int64) * tile_bytes
    start = codes + (first // _BLOCK).to(gl.int64) * BYTES
    if PDL:
        tile = gl.minimum(first_tile + gl.arange(0, TILES, gl.SliceLayout(1, LINE)), last_tile)
        line = 128 * gl.arange(0, _LINES, gl.SliceLayout(0, LINE))
        line = gl.maximum(gl.minimum(line, count * BLOCKS * BYTES - 128), 0)
        place = start + tile.to(gl.int64)[:, None] * tile_bytes + line[None, :]
        _prefetch(place)
        if GATED:
            _prefetch(place + up_bytes)
    wait(PDL)

    tile = gl.minimum(first_tile + gl.arange(0, TILES, gl.SliceLayout(1, STORED)), last_tile)
    byte = gl.arange(0, BLOCKS * BYTES, gl.SliceLayout(0, STORED))
    code_at = start + tile.to(gl.int64)[:, None] * tile_bytes + byte[None, :]
    scaled = gl.arange(0, BLOCKS * TILES * _OUTPUTS, SCALED)
    scale_block = first // _BLOCK + scaled // (TILES * _OUTPUTS)
    scaled_tile = first_tile + scaled % (TILES * _OUTPUTS) // _OUTPUTS
    scale_at = scales + gl.minimum(scaled_tile, last_tile) * _OUTPUTS + scaled % _OUTPUTS
    gate_at = (code_at, scale_at)
    up_at = (code_at + up_bytes, scale_at + outputs)
    copied = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPIED))
    is_row = (copied < rows)[:, None]
    column = first + gl.arange(0, DEPTH, gl.SliceLayout(0, COPIED))
    row_at = x + copied.to(gl.int64)[:, None] * depth + column[None, :]

    row_stages = gl.allocate_shared_memory(
        x.dtype.element_ty, [STAGES, ROWS, DEPTH], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    )
    gate_stages = _stages(STAGES, TILES, BLOCKS, BYTES, AFTER)
    up_stages = gate_stages
    if GATED:
        up_stages = _stages(STAGES, TILES, BLOCKS, BYTES, AFTER)
    total = gl.zeros([TILES * _OUTPUTS, ROWS], gl.float32, SUMS)
    up = total
    for step in gl.static_range(STAGES - 1):
        _copy_step(
            gate_at, up_at, row_at, is_row, gate_stages, up_stages, row_stages, step, count,
            scale_block, columns, STAGES, BLOCKS, BYTES, GROUP, GATED,
        )  # fmt: skip
    for step in range(0, count):
        async_copy.wait_group(STAGES - 2)
        _synchronise()  # this step's copies are there for all threads; all have read those before
        _copy_step(
            gate_at, up_at, row_at, is_row, gate_stages, up_stages, row_stages, step + STAGES - 1,
            count, scale_block, columns, STAGES, BLOCKS, BYTES, GROUP, GATED,
        )  # fmt: skip
        stage = step % STAGES
        for block in gl.static_range(BLOCKS):
            total = _multiply(
                total, gate_stages, row_stages, stage, block, TILES, BYTES, FOUR_BITS, AFTER, WIDEN
            )
            if GATED:
                up = _multiply(
                    up, up_stages, row_stages, stage, block, TILES, BYTES, FOUR_BITS, AFTER, WIDEN
                )
    async_copy.wait_group(0)
    _store(
        total, up, x, scales, bias, y,
        first_tile * _OUTPUTS + gl.arange(0, TILES * _OUTPUTS, gl.SliceLayout(1, SUMS)),
        gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, SUMS)),
        rows, outputs, segment, AFTER, BIASED, GATED, PARTIAL,
    )  # fmt: skip
