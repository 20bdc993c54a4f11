"""Key-value rows of all sequences in one growing arena.

A sequence owns an extent: committed rows, then scratch rows for the tree being scored. A shared
prefix is an extent of its own that others build on, read-only and counted. Where the rows are
kept, and how, is the storage's business (`storage.py`).
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from graft.errors import GraftError

ALIGN = 16  # extents start at multiples of this, so that panels of keys belong to one extent


class Storage(Protocol):
    """Rows of keys and values for all layers."""

    rows: int

    def resize(self, rows: int) -> None:
        """Keep the rows there are, up to `rows`; new ones hold zeros."""

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy rows, as if all were read before any is written."""

    def read(self, rows: np.ndarray) -> Tensor:
        """[2, L, K, n, D]: keys and values of the rows, in a common form."""

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """Put back what `read` gave."""


class OutOfRowsError(GraftError):
    """The arena is full; finish or release a sequence first."""


@dataclass(slots=True)
class Extent:
    """Rows start .. start + capacity; the first `length` are committed."""

    start: int
    capacity: int
    length: int = 0
    prefix: "Extent | None" = None
    users: int = field(default=1, repr=False)

    @property
    def total(self) -> int:
        """Committed tokens, those of the shared prefix included."""
        return self.length + (self.prefix.total if self.prefix else 0)

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(first row, committed rows) of the prefixes and of this extent, oldest first."""
        before = self.prefix.segments if self.prefix else []
        return [*before, (self.start, self.length)]


class Arena:
    """Hands out extents of a storage; grows it in steps up to `most_rows`."""

    def __init__(self, storage: Storage, *, most_rows: int | None = None) -> None:
        self.storage = storage
        self.most_rows = most_rows
        self._taken: list[Extent] = []  # by start

    def reserve(self, rows: int, prefix: Extent | None = None) -> Extent:
        """A new extent with room for `rows`, on top of `prefix` if given."""
        extent = Extent(self._find(rows), _aligned(rows), prefix=prefix)
        if prefix:
            prefix.users += 1
        self._insert(extent)
        return extent

    def ensure(self, extent: Extent, rows: int) -> None:
        """Make room for `rows` in all (committed and scratch), moving the extent if it must."""
        if rows <= extent.capacity:
            return
        least, wanted = _aligned(rows), _aligned(max(rows, extent.capacity * 3 // 2))
        if not self._stretch(extent, least, wanted):
            self._move(extent, least, wanted)

    def commit(self, extent: Extent, path: list[int]) -> None:
        """Scratch rows `path` (ascending) become the tail of the committed rows."""
        assert extent.users == 1, "a shared extent is read-only"
        first = extent.start + extent.length
        moved = [(first + node, first + i) for i, node in enumerate(path) if node != i]
        if moved:
            source, target = np.array(moved).T
            self.storage.move(source, target)
        extent.length += len(path)

    def truncate(self, extent: Extent, length: int) -> None:
        """Forget the committed rows behind `length`."""
        assert 0 <= length <= extent.length
        extent.length = length

    def release(self, extent: Extent) -> None:
        """Give up one use; the rows are free when nobody builds on them any more."""
        extent.users -= 1
        if extent.users == 0:
            self._taken.remove(extent)
            if extent.prefix:
                self.release(extent.prefix)

    @property
    def taken(self) -> int:
        """Rows that belong to extents."""
        return sum(extent.capacity for extent in self._taken)

    def _stretch(self, extent: Extent, least: int, wanted: int) -> bool:
        """Take the free rows behind the extent, if they are enough."""
        place = self._taken.index(extent)
        if place + 1 < len(self._taken):
            end = self._taken[place + 1].start
        elif self.most_rows is None or extent.start + least <= self.most_rows:
            self._grow(extent.start + wanted, least=extent.start + least)
            end = self.storage.rows
        else:
            return False
        if end - extent.start < least:
            return False
        extent.capacity = min(wanted, end - extent.start)
        return True

    def _move(self, extent: Extent, least: int, wanted: int) -> None:
        """Copy the committed rows to a larger gap; content of the scratch rows is lost."""
        try:
            start, capacity = self._find(wanted), wanted
        except OutOfRowsError:
            start, capacity = self._find(least), least
        committed = np.arange(extent.length)
        self.storage.move(extent.start + committed, start + committed)
        self._taken.remove(extent)
        extent.start, extent.capacity = start, capacity
        self._insert(extent)

    def _find(self, rows: int) -> int:
        """First gap that holds `rows`, growing the storage if there is none."""
        rows, end = _aligned(rows), 0
        for extent in self._taken:
            if extent.start - end >= rows:
                return end
            end = extent.start + extent.capacity
        self._grow(end + rows, least=end + rows)
        return end

    def _grow(self, rows: int, *, least: int) -> None:
        if self.most_rows is not None and least > self.most_rows:
            raise OutOfRowsError(
                f"the cache is full: {least} rows wanted, {self.most_rows} allowed; "
                "finish other requests first or raise the limit"
            )
        if least > self.storage.rows:
            wanted = _aligned(max(rows, self.storage.rows * 3 // 2))
            if self.most_rows is not None:
                wanted = min(wanted, self.most_rows // ALIGN * ALIGN)
            self.storage.resize(wanted)

    def _insert(self, extent: Extent) -> None:
        place = sum(other.start < extent.start for other in self._taken)
        self._taken.insert(place, extent)


def _aligned(rows: int) -> int:
    return -(-max(rows, 1) // ALIGN) * ALIGN
