"""Quantised matrices in the order in which the threads of a matrix instruction hold them.

A tile has 16 outputs and 64 bytes of each: FP8 codes of 64 inputs, or pairs of 4-bit codes of 128
(see `PackedMatrix`). A matrix instruction takes 16 x 16 weights: thread 4 g + t of a warp holds
outputs g and g + 8 at inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. Of a tile it holds four such
groups, 32 bytes. They are stored as two runs of 16 bytes, and a run of all 32 threads lies
together, so a warp reads whole cache lines and no byte passes from one thread to another. The two
bytes of an output stand two bytes apart: masks then put them into the halves of a register.

Products are in `fragment_product_gluon`; the definition is `PackedMatrix.dense`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from graft.kernels.packed_matrix import BLOCK, PackedMatrix, packed_segments

if TYPE_CHECKING:
    from graft.kernels.product_triton import ProductPlan

OUTPUTS = 16  # of a tile
WIDTH = 64  # bytes of an output in a tile
# The dimensions of a tile's bytes in memory, slowest first; `k32` is the run of 16 bytes.
STORED = ("k32", "output", "k2", "k16", "k8", "k1", "output8")
STORED_SIZES = (2, 8, 4, 2, 2, 2, 2)
IN_ORDER = ("output8", "output", "k32", "k16", "k8", "k2", "k1")
_SIZES = dict(zip(STORED, STORED_SIZES, strict=True))
FP8_NAN = 0x7F  # apart from the sign; widening by bits would make it a number


@dataclass(frozen=True, slots=True)
class FragmentMatrix:
    """A quantised matrix [O, I] in fragment order, for products in 16 bits on Hopper.

    `codes` uint8 [O / 16, bytes of an output / 64, 1024]. `scales` [G, O]: float32 for FP8; int32
    for 4 bits, the scale in the low half and in the high half the zero plus the value of the bits
    that make a code a float.
    """

    codes: Tensor
    scales: Tensor
    dtype: torch.dtype

    min_rows: ClassVar[int] = 8

    @property
    def four_bits(self) -> bool:
        """Whether a byte holds two codes."""
        return self.scales.dtype == torch.int32

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        tiles, parts, _ = self.codes.shape
        return OUTPUTS * tiles, parts * WIDTH * (2 if self.four_bits else 1)

    @property
    def group(self) -> int:
        """Inputs of a scale."""
        return self.shape[1] // len(self.scales)

    @property
    def nbytes(self) -> int:
        """Of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    @property
    def device(self) -> torch.device:
        """Of the codes."""
        return self.codes.device

    @property
    def storage(self) -> str:
        """Bits of a code and inputs of a scale."""
        bits = "int4" if self.four_bits else "fp8"
        return f"{self.dtype} {bits} {len(self.scales)} fragments"

    @property
    def segments(self) -> int:
        """See `product_triton.Matrix`."""
        return packed_segments(*self.shape, four_bits=self.four_bits)

    @property
    def factors(self) -> Tensor | None:
        """[O] float32 that sums are multiplied by; None where scales are part of `dense`."""
        return self.scales[0] if not self.four_bits and len(self.scales) == 1 else None

    def dense(self) -> Tensor:
        """[O, I], apart from `factors`."""
        from graft.kernels.packed_product_triton import widen_fragments

        return widen_fragments(self)

    def plans(self, rows: int, outputs: int) -> "list[ProductPlan]":
        """See `product_triton.Matrix`."""
        from graft.kernels.fragment_product_gluon import fragment_plans

        return fragment_plans(rows, outputs)

    def product(self, x: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """See `product_triton.Matrix`."""
        from graft.kernels.fragment_product_gluon import fragment_product

        return fragment_product(x, self, **options)


def for_device(matrix: PackedMatrix) -> PackedMatrix | FragmentMatrix:
    """The matrix in the order that is fastest on its device."""
    device = matrix.device
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9  # noqa: PLR2004
    return in_fragments(matrix) if is_hopper and fits(matrix) else matrix


def fits(matrix: PackedMatrix) -> bool:
    """Whether products in fragment order take this matrix: whole tiles and blocks of 128 inputs,
    one scale for a block, and no code that is not a number."""
    outputs, depth = matrix.shape
    whole = outputs % OUTPUTS == 0 and depth % BLOCK == 0 and matrix.group % BLOCK == 0
    if not whole or matrix.dtype not in (torch.bfloat16, torch.float16):
        return False
    if matrix.zeros is not None:
        return 2 * matrix.codes.shape[2] == BLOCK
    magnitude = matrix.codes.view(torch.uint8) & FP8_NAN
    return not bool((magnitude == FP8_NAN).any())


def in_fragments(matrix: PackedMatrix) -> FragmentMatrix:
    """A matrix for which `fits` holds, in fragment order."""
    if matrix.zeros is None:
        codes = arrange(matrix.codes.view(torch.uint8))
        return FragmentMatrix(codes, matrix.scales.contiguous(), matrix.dtype)
    codes = arrange(matrix.codes.transpose(0, 1).flatten(1))
    ones = 1024 if matrix.dtype == torch.float16 else 128  # `packed_product_triton.MAGIC`
    scales, zeros = (
        part.contiguous().view(torch.int16).int() for part in (matrix.scales, matrix.zeros + ones)
    )
    return FragmentMatrix(codes, zeros << 16 | scales & 0xFFFF, matrix.dtype)


def arrange(codes: Tensor) -> Tensor:
    """[O / 16, W / 64, 1024] in fragment order, of bytes [O, W]."""
    tiles = codes.unflatten(0, (-1, OUTPUTS)).unflatten(2, (-1, WIDTH)).transpose(1, 2)
    parts = tiles.reshape(*tiles.shape[:2], *(_SIZES[name] for name in IN_ORDER))
    return parts.permute(0, 1, *(2 + IN_ORDER.index(name) for name in STORED)).flatten(2)


def restore(codes: Tensor) -> Tensor:
    """Bytes [O, W] of those in fragment order."""
    parts = codes.unflatten(2, STORED_SIZES)
    tiles = parts.permute(0, 1, *(2 + STORED.index(name) for name in IN_ORDER))
    return tiles.reshape(*codes.shape[:2], OUTPUTS, WIDTH).transpose(1, 2).flatten(2).flatten(0, 1)
