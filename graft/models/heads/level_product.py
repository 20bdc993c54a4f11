"""Products of a head's draft levels on a GPU."""

import torch.nn.functional as F
from torch import Tensor

from graft.kernels.decoder_triton import swiglu
from graft.kernels.fragment_matrix import FragmentMatrix, for_device
from graft.kernels.packed_matrix import fp8_matrix
from graft.kernels.product_triton import DenseMatrix, Matrix

FEW = 64  # rows up to which our products are faster than the library's


class LevelProduct:
    """A product whose bits may depend on the number of rows, as those of a draft may.

    A level has few rows, so it takes as long as reading its weights: they are read in FP8 where a
    GPU has products in fragment order. Many rows, of a prompt, take the library's product with the
    weight itself.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, gated: bool = False, cut: bool = False
    ) -> None:
        """With `gated` see `product_triton.product`. A `cut` product may be [segments, N, O] in
        float32, as `add_norm` takes it."""
        self._weight, self._bias, self._gated = weight, bias, gated
        rounded = for_device(fp8_matrix(weight)) if weight.is_cuda else None
        is_fast = isinstance(rounded, FragmentMatrix)
        self._matrix: Matrix = rounded if is_fast else DenseMatrix(weight)
        self._outputs = len(weight) // 2 if gated else len(weight)
        self._segments = self._matrix.segments if cut else 1

    def __call__(self, x: Tensor) -> Tensor:
        """Of rows x [N, I]."""
        if len(x) > FEW:
            y = F.linear(x, self._weight, self._bias)
            return swiglu(y) if self._gated else y
        matrix = self._matrix
        return matrix.product(
            x,
            bias=self._bias,
            gated=self._gated,
            segments=self._segments,
            plan=matrix.plans(max(len(x), matrix.min_rows), self._outputs)[0],
        )
