"""Allocates the KV cache rows of all sequences in one growing arena.

A sequence owns an extent: committed rows, then scratch rows for the tree that is scored. Other
extents may share its first committed rows, which are then pinned; the sequence may still grow.
A storage (`storage.py`) holds the rows themselves.
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

ALIGN = 16  # extents start at multiples of this, so a panel of keys belongs to one extent
ROWS_AHEAD = 512  # rows allocated for an answer at first; more follow when it grows
BLOCK = SPLIT  # attention sums in splits of this size, so sharing whole blocks changes no sum
STATES_BYTES = 1 << 30  # of the recurrent states of a step's nodes


class Storage(Protocol):
    """Rows of keys and values for all layers."""

    rows: int
    row_bytes: int
    state_bytes: int  # of a recurrent state, without which a sequence cannot go on after a row

    def resize(self, rows: int) -> None:
        """Have `rows` rows: existing ones are kept, new ones hold zeros."""

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy rows; source and target may overlap."""

    def read(self, rows: np.ndarray) -> Tensor:
        """[2, L, K, n, D]: keys and values of the rows, whatever the storage's layout."""

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """Write rows in the form that `read` returns."""

    def release(self, first: int, last: int) -> None:
        """Rows first .. last - 1 are free."""

    def blank(self, row: int) -> None:
        """Let a sequence go on after this row, whatever it holds: for measurements."""

    def resumable(self, segments: Sequence[tuple[int, int]]) -> int:
        """How many of the tokens in these segments (first row, number of rows) another sequence can
        share."""

    def gather(self, source: Tensor, target: np.ndarray) -> None:
        """Copy rows `source` [L, K, n], chosen by layer and head, to rows `target` [n]."""

    def keys_of(self, layer: int, segments: Sequence[tuple[int, int]]) -> Tensor:
        """[K, n, D]: a layer's keys in these segments (first row, number of rows)."""

    def attend(
        self, layers: int, query: Tensor, segments: Sequence[tuple[int, int]], scale: float
    ) -> Part:
        """Attention of queries [layers * H, n, D] over these segments (first row, number of rows):
        the last H heads attend to the last layer, the H before them to the layer before, ..."""


class OutOfRowsError(GraftError):
    """No rows are free; finish or release a sequence first."""


@dataclass(slots=True, eq=False)
class Extent:
    """Rows start .. start + capacity, the first `length` of them committed, on top of the first
    `shared` tokens of another extent."""

    start: int
    capacity: int
    length: int = 0
    prefix: "Extent | None" = None
    shared: int = 0
    skipped: int = 0  # positions left out before the next token
    users: int = field(default=1, repr=False)  # the owner and extents that share its rows
    pinned: int = field(default=0, repr=False)  # tokens that other extents share

    @property
    def total(self) -> int:
        """Committed tokens, the shared ones included."""
        return self.shared + self.length

    @property
    def position(self) -> int:
        """Position of the next token."""
        return self.total + self.skipped

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(first row, committed rows) of what is shared and of this extent, oldest first."""
        own = (self.start, self.length)
        return [*between(self.prefix.segments, 0, self.shared), own] if self.prefix else [own]

    @property
    def placed(self) -> tuple[list[tuple[int, int]], list[int] | None]:
        """The segments, and the position of each one's first row; None: consecutive from 0."""
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
    """Allocates extents of a storage; grows it in steps up to `max_rows`."""

    def __init__(self, storage: Storage, *, max_rows: int | None = None) -> None:
        self.storage = storage
        self.max_rows = max_rows
        self._taken: list[Extent] = []  # by start

    @property
    def usage(self) -> float:
        """Share of the rows that are allocated."""
        rows = self.max_rows or self.storage.rows
        return sum(extent.capacity for extent in self._taken) / rows if rows else 0.0

    def hold(self, rows: int) -> None:
        """Allocate the storage now, once and for all, so that its memory never moves."""
        self.max_rows = rows // ALIGN * ALIGN
        self.storage.resize(self.max_rows)

    def reserve(self, rows: int, prefix: Extent | None = None, shared: int | None = None) -> Extent:
        """A new extent of `rows`, on top of the first `shared` tokens of `prefix`."""
        extent = self.place(Extent(0, rows, prefix=prefix))
        if prefix:
            extent.shared = prefix.total if shared is None else shared
            assert extent.shared <= prefix.total, "only committed rows can be shared"
            prefix.users += 1
            prefix.pinned = max(prefix.pinned, extent.shared)
        return extent

    def place(self, extent: E) -> E:
        """Allocate the rows of a new extent, as many as its capacity."""
        extent.capacity = _aligned(extent.capacity)
        extent.start = self._find(extent.capacity)
        self._insert(extent)
        return extent

    def ensure(self, extent: Extent, rows: int) -> None:
        """Let an extent have `rows` in all (committed and scratch); it may move."""
        if rows <= extent.capacity:
            return
        needed, wanted = _aligned(rows), _aligned(max(rows, extent.capacity * 3 // 2))
        if not self._extend(extent, needed, wanted):
            self._move(extent, needed, wanted)

    def commit(self, paths: Iterable[tuple[Extent, list[int]]]) -> None:
        """Append the scratch rows `path` (ascending) of each extent to its committed rows."""
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
        """Discard the committed rows behind `length`."""
        assert max(0, extent.pinned - extent.shared) <= length <= extent.length
        extent.length = length

    def trim(self, extent: Extent) -> None:
        """Free the rows behind the committed ones."""
        self.storage.release(extent.start + extent.length, extent.start + extent.capacity)
        extent.capacity = _aligned(extent.length)

    def release(self, extent: Extent) -> None:
        """Drop one reference; the rows are freed with the last one."""
        extent.users -= 1
        if extent.users == 1:
            extent.pinned = 0
        if extent.users == 0:
            del self._taken[self._place(extent)]
            self.storage.release(extent.start, extent.start + extent.capacity)
            if extent.prefix:
                self.release(extent.prefix)

    @property
    def taken(self) -> int:
        """Allocated rows."""
        return sum(extent.capacity for extent in self._taken)

    def _extend(self, extent: Extent, needed: int, wanted: int) -> bool:
        """Take the free rows behind the extent; False if there are fewer than needed."""
        place = self._place(extent)
        if place + 1 < len(self._taken):
            end = self._taken[place + 1].start
        elif self.max_rows is None or extent.start + needed <= self.max_rows:
            self._grow(extent.start + wanted, needed=extent.start + needed)
            end = self.storage.rows
        else:
            return False
        if end - extent.start < needed:
            return False
        extent.capacity = min(wanted, end - extent.start)
        return True

    def _move(self, extent: Extent, needed: int, wanted: int) -> None:
        """Copy the committed rows to a larger gap; scratch rows are lost."""
        try:
            start, capacity = self._find(wanted), wanted
        except OutOfRowsError:
            start, capacity = self._find(needed), needed
        committed = np.arange(extent.length)
        self.storage.move(extent.start + committed, start + committed)
        self.storage.release(extent.start, extent.start + extent.capacity)
        del self._taken[self._place(extent)]
        extent.start, extent.capacity = start, capacity
        self._insert(extent)

    def _find(self, rows: int) -> int:
        """The first gap of `rows`; the storage grows if there is none."""
        rows, end = _aligned(rows), 0
        for extent in self._taken:
            if extent.start - end >= rows:
                return end
            end = extent.start + extent.capacity
        self._grow(end + rows, needed=end + rows)
        return end

    def _grow(self, rows: int, *, needed: int) -> None:
        if self.max_rows is not None and needed > self.max_rows:
            raise OutOfRowsError(
                f"the cache is full: {needed} rows wanted, {self.max_rows} allowed; "
                "finish other requests first or raise the limit"
            )
        if needed > self.storage.rows:
            wanted = _aligned(max(rows, self.storage.rows * 3 // 2))
            if self.max_rows is not None:
                wanted = min(wanted, self.max_rows // ALIGN * ALIGN)
            self.storage.resize(wanted)

    def _insert(self, extent: Extent) -> None:
        self._taken.insert(self._place(extent), extent)

    def _place(self, extent: Extent) -> int:
        """An extent's index in `_taken`, or where to insert it."""
        return bisect_left(self._taken, extent.start, key=attrgetter("start"))


def _aligned(rows: int) -> int:
    return -(-max(rows, 1) // ALIGN) * ALIGN
