"""Products of rows with a matrix in Triton, with the same bits for a row in any call.

An element of a product is the sum over the inputs in their order, by matrix instructions that add
sixteen at a time to a float32 sum. How many rows, outputs and inputs a program takes changes the
speed alone, and a library's product that does not split the inputs has the same bits (verified on
Hopper in bfloat16 and float16, by `product_choice` at load). A matrix with few outputs and many
inputs is cut into segments of inputs, always the same for a matrix: their partial sums are added
in order by the kernel that uses the result.

With few rows a product takes as long as reading its weights: programs ask for their first weights
before they wait for the kernel in front of them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import overlapped, wait

SEGMENT_STEP = 256  # inputs: segments are multiples of it
MIN_SEGMENT = 2048  # inputs: shorter ones cost more than they save
PROGRAMS = 240  # of 16 outputs each that read a matrix at about full speed
LINE = 128  # bytes of a cache line
PREFETCH = 8  # lines of each row of weights
FEW_ROWS = 16  # rows of a program at least: fewer take as long
_PREFETCH = tl.constexpr(PREFETCH)


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How a product is divided among programs; it does not change the result."""

    rows: int  # per program
    outputs: int  # per program
    depth: int  # inputs per iteration
    warps: int
    stages: int  # of the software pipeline
    swapped: bool = False  # outputs, not rows, are the first operand


class Matrix(Protocol):
    """A matrix [O, I] of a product: dense, or quantised and multiplied as it is."""

    min_rows: ClassVar[int]  # fewer take as long

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    @property
    def nbytes(self) -> int:
        """Of all that is stored."""

    @property
    def device(self) -> torch.device:
        """Where it is."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows that it multiplies."""

    @property
    def storage(self) -> str:
        """How it is stored."""

    @property
    def segments(self) -> int:
        """Of the inputs, where a product may be cut."""

    @property
    def factors(self) -> Tensor | None:
        """[O] float32 that sums of `dense` are multiplied by."""

    def dense(self) -> Tensor:
        """[O, I] in `dtype`, apart from `factors`."""

    def plans(self, rows: int, outputs: int) -> list[ProductPlan]:
        """Plans worth measuring, the likely best first."""

    def product(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        gated: bool = False,
        segments: int = 1,
        out: Tensor | None = None,
        plan: ProductPlan,
    ) -> Tensor:
        """See `product`."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A matrix that is stored as a tensor."""

    weight: Tensor

    factors: ClassVar[None] = None
    min_rows: ClassVar[int] = FEW_ROWS

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, depth = self.weight.shape
        return outputs, depth

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return self.weight.nbytes

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.weight.dtype

    @property
    def storage(self) -> str:
        """The dtype."""
        return f"{self.weight.dtype}"

    @property
    def segments(self) -> int:
        """See Matrix."""
        return segments_of(*self.shape)

    def dense(self) -> Tensor:
        """See Matrix."""
        return self.weight

    def plans(self, rows: int, outputs: int) -> list[ProductPlan]:
        """See Matrix."""
        return plans(rows, outputs, self.shape[1], self.weight.itemsize)

    def product(self, x: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """See Matrix."""
        return product(x, self.weight, **options)


def segments_of(outputs: int, depth: int) -> int:
    """Segments of the inputs of a matrix [outputs, depth]: a property of the matrix."""
    segments = 1
    while 16 * PROGRAMS > outputs * segments and depth >= 2 * segments * MIN_SEGMENT:
        segments *= 2
    return segments


def segment_bounds(depth: int, segments: int) -> list[tuple[int, int]]:
    """First and last input of each segment."""
    span = segment_span(depth, segments)
    return [(first, min(depth, first + span)) for first in range(0, depth, span)]


def segment_span(depth: int, segments: int) -> int:
    """Inputs of a segment; the last may have fewer."""
    return triton.cdiv(triton.cdiv(depth, segments), SEGMENT_STEP) * SEGMENT_STEP


def default_plan(rows: int, outputs: int, depth: int, itemsize: int = 2) -> ProductPlan:
    """A good plan without measuring."""
    return plans(rows, outputs, depth, itemsize)[0]


def tile_of(rows: int) -> int:
    """Rows of a program for a product of so many."""
    return min(max(FEW_ROWS, triton.next_power_of_2(rows)), 128)


def plans(rows: int, outputs: int, depth: int, itemsize: int = 2) -> list[ProductPlan]:
    """Plans worth measuring, for weights of `itemsize` bytes, the likely best first."""
    tile = tile_of(rows)
    if itemsize > 2:  # noqa: PLR2004
        return [ProductPlan(min(tile, 32), 32, 32, 4, 3)]
    found = {
        16: [
            (16, 256, 2, 5, False),
            (16, 256, 2, 7, False),
            (64, 128, 4, 4, True),
            (64, 256, 4, 3, True),
        ],
        32: [(16, 256, 4, 4, False), (64, 128, 4, 4, True)],
        64: [(32, 128, 4, 5, False), (64, 128, 4, 4, False), (128, 64, 8, 4, True)],
        128: [(64, 64, 4, 4, False), (128, 64, 8, 4, False)],
    }[tile]
    made = [ProductPlan(tile, *each) for each in found]
    wide = outputs >= 16 * 1024
    return sorted(made, key=lambda plan: plan.outputs != 64) if wide else made


def product(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    gated: bool = False,
    segments: int = 1,
    out: Tensor | None = None,
    plan: ProductPlan | None = None,
) -> Tensor:
    """x [N, I] @ weight [O, I].T -> [N, O], rounded to the dtype of x, in `out` if there is one.

    With `gated`, weight is gates and ups [2F, I] and the result silu(gate) * up [N, F], of both
    rounded. With segments, the result is [segments, N, O] in float32, to be summed in order.
    """
    rows, depth = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    assert weight.is_contiguous(), "rows must be contiguous"
    assert segments == 1 or (bias is None and not gated), "only plain products are cut"
    plan = plan or default_plan(rows, outputs, depth, x.itemsize)
    y, grid, span = launch_shape(x, outputs, segments, out, plan)
    _product[grid](
        x, weight, x if bias is None else bias, y, rows, outputs, depth, span,
        ROWS=plan.rows, OUTPUTS=plan.outputs, DEPTH=plan.depth, STAGES=plan.stages,
        EVEN=depth % plan.depth == 0 and span % plan.depth == 0, SWAPPED=plan.swapped,
        BIASED=bias is not None, GATED=gated, PARTIAL=segments > 1,
        PREFETCHED=plan.rows == FEW_ROWS and span >= PREFETCH * LINE, ELEMENTS=LINE // x.itemsize,
        num_warps=plan.warps, **overlapped(x.device),
    )  # fmt: skip
    return y


def launch_shape(
    x: Tensor, outputs: int, segments: int, out: Tensor | None, plan: ProductPlan
) -> tuple[Tensor, tuple[int, int, int], int]:
    """Where the result goes, the programs, and the inputs of a segment."""
    assert x.is_contiguous(), "rows must be contiguous"
    rows, depth = x.shape
    y = out
    if y is None and segments > 1:
        y = x.new_empty(segments, rows, outputs, dtype=torch.float32)
    elif y is None:
        y = x.new_empty(rows, outputs)
    grid = (triton.cdiv(rows, plan.rows), triton.cdiv(outputs, plan.outputs), segments)
    return y, grid, depth if segments == 1 else segment_span(depth, segments)


@triton.jit(do_not_specialize=["rows"])
def _product(
    x, weight, bias, y, rows, outputs, depth, span,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, SWAPPED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    PARTIAL: tl.constexpr, PREFETCHED: tl.constexpr, ELEMENTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of rows and outputs, over all inputs or one segment of them."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    segment = tl.program_id(2)
    first = segment * span
    x_at = x + row[:, None].to(tl.int64) * depth + first
    # Outputs beyond the last read the last one and are not stored.
    weight_at = weight + tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * depth + first
    up_at = weight_at + tl.cast(outputs, tl.int64) * depth  # an argument of 1 is a plain int
    if PDL and PREFETCHED:
        _prefetch(weight_at, ELEMENTS)
        if GATED:
            _prefetch(up_at, ELEMENTS)
    wait(PDL)
    is_row = (row < rows)[:, None]
    column = tl.arange(0, DEPTH)[None, :]
    count = tl.minimum(span, depth - first)
    total = zero_sums(ROWS, OUTPUTS, SWAPPED)
    up = total
    for step in tl.range(0, tl.cdiv(count, DEPTH), num_stages=STAGES):
        at = step * DEPTH + column
        inside = at < count
        values = tl.load(x_at + at, is_row if EVEN else is_row & inside, other=0.0)
        total = accumulate(total, values, _read(weight_at + at, inside, EVEN), SWAPPED)
        if GATED:
            up = accumulate(up, values, _read(up_at + at, inside, EVEN), SWAPPED)
    store_product(
        total, up, x, bias, y, row, output, rows, outputs, segment, SWAPPED, BIASED, GATED, PARTIAL
    )


@triton.jit
def store_product(
    total, up, x, bias, y, row, output, rows, outputs, segment,
    SWAPPED: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Store a block of sums, rounded to the dtype of x and gated, or a segment's partial sums."""
    if SWAPPED:
        total, up = tl.trans(total), tl.trans(up)
    known = (row < rows)[:, None] & (output < outputs)[None, :]
    place = y + row[:, None].to(tl.int64) * outputs + output[None, :]
    if PARTIAL:
        tl.store(place + segment.to(tl.int64) * rows * outputs, total, known)
    else:
        if BIASED:
            total += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)[None, :]
        total = total.to(x.dtype.element_ty)
        if GATED:
            gate = total.to(tl.float32)
            total = gate * tl.sigmoid(gate) * up.to(x.dtype.element_ty).to(tl.float32)
        tl.store(place, total.to(x.dtype.element_ty), known)


@triton.jit
def _read(place, inside, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(place)
    else:
        return tl.load(place, inside, other=0.0)


@triton.jit
def _prefetch(place, ELEMENTS: tl.constexpr):
    """Ask for the first cache lines of each row of weights."""
    line = tl.arange(0, _PREFETCH)[None, :] * ELEMENTS
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [place + line],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def zero_sums(ROWS: tl.constexpr, OUTPUTS: tl.constexpr, SWAPPED: tl.constexpr):
    """The sums of a block before the first inputs."""
    if SWAPPED:
        return tl.zeros([OUTPUTS, ROWS], tl.float32)
    else:
        return tl.zeros([ROWS, OUTPUTS], tl.float32)


@triton.jit
def accumulate(total, x, weight, SWAPPED: tl.constexpr):
    """The sums with the products of some more inputs."""
    if SWAPPED:
        return tl.dot(weight, tl.trans(x), total, input_precision="ieee")
    else:
        return tl.dot(x, tl.trans(weight), total, input_precision="ieee")
