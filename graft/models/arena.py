"""Key-value rows of all sequences in one growing arena.

A sequence owns an extent: committed rows, then scratch rows for the tree being scored. Others may
build on its first committed rows, which then stay as they are; it may go on growing behind them.
Where the rows are kept, and how, is the storage's business (`storage.py`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol, TypeVar

import numpy as np
from torch import Tensor

from graft.errors import GraftError
from graft.kernels.attention_parts import Part
from graft.kernels.tree_layout import SPLIT

ALIGN = 16  # extents start at multiples of this, so that panels of keys belong to one extent
ROOM_AHEAD = 512  # rows taken for an answer at first; more come when it grows
BLOCK = SPLIT  # sharing whole blocks leaves every sum of attention as it would be without


class Storage(Protocol):
    """Rows of keys and values for all layers."""

    rows: int
    row_bytes: int

    def resize(self, rows: int) -> None:
        """Keep the rows there are, up to `rows`; new ones hold zeros."""

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy rows, as if all were read before any is written."""

    def read(self, rows: np.ndarray) -> Tensor:
        """[2, L, K, n, D]: keys and values of the rows, in a common form."""

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """Put back what `read` gave."""

    def gather(self, source: Tensor, target: np.ndarray) -> None:
        """Copy to rows `target` [n] what every layer and head has in rows `source` [L, K, n]."""

    def keys_of(self, layer: int, segments: Sequence[tuple[int, int]]) -> Tensor:
        """[K, n, D]: the keys of a layer in the rows of these segments (first row, rows)."""

    def attend(
        self, layers: int, query: Tensor, segments: Sequence[tuple[int, int]], scale: float
    ) -> Part:
        """Attention of queries [layers * H, n, D] over the rows of these segments (first row,
        rows): the last H heads see the last layer, those before them the one before, ..."""


class OutOfRowsError(GraftError):
    """The arena is full; finish or release a sequence first."""


@dataclass(slots=True, eq=False)
class Extent:
    """Rows start .. start + capacity, the first `length` of them committed, on top of the first
    `shared` tokens of another extent."""

    start: int
    capacity: int
    length: int = 0
    prefix: "Extent | None" = None
    shared: int = 0
    skipped: int = 0  # positions that were left out before the next token
    users: int = field(default=1, repr=False)  # the owner and those who build on it
    pinned: int = field(default=0, repr=False)  # tokens that others build on

    @property
    def total(self) -> int:
        """Committed tokens, the shared ones included."""
        return self.shared + self.length

    @property
    def position(self) -> int:
        """Where the next token stands."""
        return self.total + self.skipped

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(first row, committed rows) of what is shared and of this extent, oldest first."""
        own = (self.start, self.length)
        return [*between(self.prefix.segments, 0, self.shared), own] if self.prefix else [own]

    @property
    def placed(self) -> tuple[list[tuple[int, int]], list[int] | None]:
        """The segments, and the position of each one's first row; None: one behind the other, from
        0."""
        return self.segments, None

    @property
    def rows(self) -> np.ndarray:
        """The cache rows of the committed tokens, in their order."""
        return np.concatenate([start + np.arange(count) for start, count in self.segments])


def between(segments: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The segments that hold tokens first .. last - 1, cut to these."""
    kept, place = [], 0
    for start, count in segments:
        low, high = max(first, place), min(last, place + count)
        if low < high:
            kept.append((start + low - place, high - low))
        place += count
    return kept


E = TypeVar("E", bound=Extent)


class Arena:
    """Hands out extents of a storage; grows it in steps up to `most_rows`."""

    def __init__(self, storage: Storage, *, most_rows: int | None = None) -> None:
        self.storage = storage
        self.most_rows = most_rows
        self._taken: list[Extent] = []  # by start

    @property
    def usage(self) -> float:
        """Share of the rows that are taken."""
        rows = self.most_rows or self.storage.rows
        return sum(extent.capacity for extent in self._taken) / rows if rows else 0.0

    def hold(self, rows: int) -> None:
        """Take so many rows now and never more, so that they stay where they are."""
        self.most_rows = rows // ALIGN * ALIGN
        self.storage.resize(self.most_rows)

    def reserve(self, rows: int, prefix: Extent | None = None, shared: int | None = None) -> Extent:
        """A new extent with room for `rows`, on top of the first `shared` tokens of `prefix`."""
        extent = self.place(Extent(0, rows, prefix=prefix))
        if prefix:
            extent.shared = prefix.total if shared is None else shared
            assert extent.shared <= prefix.total, "only committed rows can be shared"
            prefix.users += 1
            prefix.pinned = max(prefix.pinned, extent.shared)
        return extent

    def place(self, extent: E) -> E:
        """Give a new extent rows of its own, as many as its capacity says."""
        extent.capacity = _aligned(extent.capacity)
        extent.start = self._find(extent.capacity)
        self._insert(extent)
        return extent

    def ensure(self, extent: Extent, rows: int) -> None:
        """Make room for `rows` in all (committed and scratch), moving the extent if it must."""
        if rows <= extent.capacity:
            return
        least, wanted = _aligned(rows), _aligned(max(rows, extent.capacity * 3 // 2))
        if not self._stretch(extent, least, wanted):
            self._move(extent, least, wanted)

    def commit(self, paths: Iterable[tuple[Extent, list[int]]]) -> None:
        """For each extent scratch rows `path` (ascending) become the tail of the committed ones."""
        moved = []
        for extent, path in paths:
            if path and path[-1] != len(path) - 1:
                first = extent.start + extent.length
                moved += [(first + node, first + i) for i, node in enumerate(path) if node != i]
            extent.length += len(path)
        if moved:
            source, target = np.array(moved).T
            self.storage.move(source, target)

    def truncate(self, extent: Extent, length: int) -> None:
        """Forget the committed rows behind `length`."""
        assert max(0, extent.pinned - extent.shared) <= length <= extent.length
        extent.length = length

    def trim(self, extent: Extent) -> None:
        """Give back the rows behind the committed ones."""
        extent.capacity = _aligned(extent.length)

    def release(self, extent: Extent) -> None:
        """Give up one use; the rows are free when nobody builds on them any more."""
        extent.users -= 1
        if extent.users == 1:
            extent.pinned = 0
        if extent.users == 0:
            del self._taken[self._place(extent)]
            if extent.prefix:
                self.release(extent.prefix)

    @property
    def taken(self) -> int:
        """Rows that belong to extents."""
        return sum(extent.capacity for extent in self._taken)

    def _stretch(self, extent: Extent, least: int, wanted: int) -> bool:
        """Take the free rows behind the extent, if they are enough."""
        place = self._place(extent)
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
        del self._taken[self._place(extent)]
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
        self._taken.insert(self._place(extent), extent)

    def _place(self, extent: Extent) -> int:
        """Where an extent stands among those taken, or would stand."""
        return bisect_left(self._taken, extent.start, key=attrgetter("start"))


def _aligned(rows: int) -> int:
    return -(-max(rows, 1) // ALIGN) * ALIGN
