"""The target's outputs of training rows, kept for the epochs after the first."""

from collections.abc import Sequence

import torch
from torch import Tensor


class KeptOutputs:
    """Tensors of rows in the host's memory, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._rows: dict[int, tuple[Tensor, ...]] = {}

    def add(self, row: int, tensors: Sequence[Tensor]) -> None:
        """Keep a row's tensors, if there is space."""
        size = sum(each.nbytes for each in tensors)
        if row not in self._rows and size <= self._left:
            self._left -= size
            self._rows[row] = tuple(_in_host_memory(each) for each in tensors)

    def take(self, rows: Sequence[int], device: torch.device) -> list[list[Tensor]] | None:
        """The first tensor of each row, then the second, ...; None unless all rows are kept."""
        if any(row not in self._rows for row in rows):
            return None
        found = [[each.to(device, non_blocking=True) for each in self._rows[row]] for row in rows]
        return [list(each) for each in zip(*found, strict=True)]


def _in_host_memory(given: Tensor) -> Tensor:
    """A copy; that of a GPU's tensor is pinned, so that no copy waits for the other."""
    kept = torch.empty(given.shape, dtype=given.dtype, pin_memory=given.is_cuda)
    return kept.copy_(given, non_blocking=True)
