"""Quantised matrices as they are stored on a device: FP8 and 4 bits.

The definition is `PackedMatrix.dense`. Products in Triton are in `packed_product_triton`, which is
imported where they are computed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from graft.kernels.product_triton import ProductPlan

BLOCK = 128  # inputs of a block of codes of 4 bits at most: the first half are the low bits
FP8_MAX, TINY = 448.0, 1e-12  # the largest code of e4m3, and the least scale
MIN_SEGMENT = 1024  # inputs: shorter segments cost more than they save ...
MAX_SEGMENTS = 4  # ... and more than these cost long prompts too much
# Outputs times segments whose sums, 16 of a warp, read a matrix at about full speed.
MIN_SUMS = {8: 16 * 512, 4: 16 * 1024}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A quantised matrix [O, I] for products in a dtype; those in Triton take 16 bits.

    FP8: `codes` float8_e4m3fn [O, I]; `scales` [G, O] float32. 4 bits: `codes` uint8
    [I / block, O, block / 2], input i of a block in the low bits and input block / 2 + i in the
    high ones; `scales` and `zeros` [G, O] in the dtype of products. A scale is for I / G inputs.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    dtype: torch.dtype

    min_rows: ClassVar[int] = 16

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        if self.zeros is None:
            outputs, depth = self.codes.shape
            return outputs, depth
        blocks, outputs, half = self.codes.shape
        return outputs, blocks * 2 * half

    @property
    def group(self) -> int:
        """Inputs of a scale."""
        return self.shape[1] // len(self.scales)

    @property
    def nbytes(self) -> int:
        """Of codes and scales."""
        return sum(x.nbytes for x in (self.codes, self.scales, self.zeros) if x is not None)

    @property
    def device(self) -> torch.device:
        """Of the codes."""
        return self.codes.device

    @property
    def storage(self) -> str:
        """Bits of a code and inputs of a scale."""
        bits = "fp8" if self.zeros is None else "int4"
        return f"{self.dtype} {bits} {len(self.scales)}"

    @property
    def segments(self) -> int:
        """See `product_triton.Matrix`."""
        return packed_segments(*self.shape, four_bits=self.zeros is not None)

    @property
    def factors(self) -> Tensor | None:
        """[O] float32 that sums are multiplied by; None where scales are part of `dense`."""
        return self.scales[0] if self.zeros is None and len(self.scales) == 1 else None

    def dense(self) -> Tensor:
        """[O, I], apart from `factors`."""
        if self.codes.device.type == "cuda":
            from graft.kernels.packed_product_triton import widen

            return widen(self)
        outputs, depth = self.shape
        if self.zeros is None:
            values = self.codes.float()
            if self.factors is None:
                values = values * self.scales.T.repeat_interleave(self.group, 1)
            return values.to(self.dtype)
        codes = torch.cat([self.codes & 15, self.codes >> 4], -1)  # [blocks, O, block]
        codes = codes.transpose(0, 1).reshape(outputs, depth).to(self.dtype)
        scales, zeros = (x.T.repeat_interleave(self.group, 1) for x in (self.scales, self.zeros))
        return (codes - zeros) * scales

    def plans(self, rows: int, outputs: int) -> "list[ProductPlan]":  # noqa: ARG002
        """See `product_triton.Matrix`."""
        from graft.kernels.packed_product_triton import packed_plans

        return packed_plans(self, rows)

    def product(self, x: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """See `product_triton.Matrix`."""
        from graft.kernels.packed_product_triton import packed_product

        return packed_product(x, self, **options)


def packed_segments(outputs: int, depth: int, *, four_bits: bool) -> int:
    """Segments of the inputs of a matrix: a warp's sums are added one after the other, so a matrix
    with few outputs needs more of them than a dense one, whose weights take longer to read."""
    wanted, segments = MIN_SUMS[4 if four_bits else 8], 1
    while (
        segments < MAX_SEGMENTS
        and outputs * segments < wanted
        and depth >= 2 * segments * MIN_SEGMENT
    ):
        segments *= 2
    return segments


def fp8_matrix(weight: Tensor) -> PackedMatrix:
    """A weight [O, I] rounded to FP8, with a scale for each output."""
    scales = weight.abs().amax(1, keepdim=True).float().clamp_min(TINY) / FP8_MAX
    codes = (weight.float() / scales).to(torch.float8_e4m3fn)
    return PackedMatrix(codes, scales.T.contiguous(), None, weight.dtype)


def joined(parts: list[PackedMatrix]) -> PackedMatrix:
    """The matrix with the outputs of all of them."""
    first = parts[0]
    assert len({len(part.scales) for part in parts}) == 1, "scales must be for the same inputs"
    zeros = None
    if first.zeros is not None:
        zeros = torch.cat([part.zeros for part in parts if part.zeros is not None], 1)
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts], 0 if zeros is None else 1)
    return PackedMatrix(
        codes.view(first.codes.dtype),
        torch.cat([part.scales for part in parts], 1),
        zeros,
        first.dtype,
    )


def pack_four_bits(codes: Tensor, group: int) -> Tensor:
    """`PackedMatrix.codes` of codes [O, I] uint8 below 16, with scales for `group` inputs each."""
    outputs, depth = codes.shape
    low, high = codes.view(outputs, -1, 2, min(group, BLOCK) // 2).unbind(2)
    return (low | high << 4).transpose(0, 1).contiguous()
