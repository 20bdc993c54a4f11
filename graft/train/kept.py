"""The target's outputs of training rows, kept for the epochs after the first."""

from collections.abc import Sequence

import torch
from torch import Tensor

Parts = tuple[Tensor | None, ...]


class KeptOutputs:
    """Rows of tensors in the host's memory, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._rows: dict[int, Parts] = {}

    def add(self, rows: Sequence[int], parts: Parts) -> None:
        """Keep tensors [B, ...] of B rows, as far as there is space."""
        for place, row in enumerate(rows):
            own = tuple(None if each is None else each[place] for each in parts)
            size = sum(each.nbytes for each in own if each is not None)
            if row in self._rows or size > self._left:
                continue
            self._left -= size
            self._rows[row] = tuple(None if each is None else _in_host_memory(each) for each in own)

    def take(self, rows: Sequence[int], device: torch.device) -> Parts | None:
        """The tensors [B, ...] of these rows, or None unless all are kept."""
        if any(row not in self._rows for row in rows):
            return None
        columns = zip(*(self._rows[row] for row in rows), strict=True)
        return tuple(_stacked(each, device) for each in columns)


def _in_host_memory(given: Tensor) -> Tensor:
    """A copy; that of a GPU's tensor is pinned, so that no copy waits for the other."""
    kept = torch.empty(given.shape, dtype=given.dtype, pin_memory=given.is_cuda)
    return kept.copy_(given, non_blocking=True)


def _stacked(given: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    if given[0] is None:
        return None
    stacked = torch.empty((len(given), *given[0].shape), dtype=given[0].dtype, device=device)
    for place, each in zip(stacked, given, strict=True):
        assert each is not None
        place.copy_(each, non_blocking=True)
    return stacked
