"""Rows of texts read before, for prompts that begin the same.

A prompt that starts with a document, or continues a chat, shares its first tokens with an earlier
one. Their keys and values are exactly those it would compute itself, so it builds on them. Running
sequences are shared from while they run; ended ones stay until the room is needed, the longest
unused first. Sharing is in whole blocks (`arena.BLOCK`), which keeps outputs the same to the last
bit where the forward is (`forward_panels`).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.models.arena import BLOCK, Arena, Extent, OutOfRowsError


class Shelf(Protocol):
    """A slower place for rows, such as a disk (`prefix_files.py`)."""

    def fetch(self, tokens: np.ndarray, known: int, arena: Arena) -> Extent | None:
        """An extent with rows of the first tokens, if it has sound ones of more than `known`."""

    def put(self, tokens: np.ndarray, arena: Arena, extent: Extent) -> None:
        """Keep the rows of these tokens, the first ones of the extent."""


def common_blocks(first: np.ndarray, second: np.ndarray) -> int:
    """First tokens that are the same in both, in whole blocks."""
    most = min(len(first), len(second))
    different = np.flatnonzero(first[:most] != second[:most])
    return (int(different[0]) if len(different) else most) // BLOCK * BLOCK


@dataclass(slots=True, eq=False)
class _Entry:
    """Rows and the tokens they were read from."""

    tokens: np.ndarray
    extent: Extent
    running: bool
    used: int = 0

    def common(self, tokens: np.ndarray) -> int:
        """First tokens that are the same and committed, in whole blocks."""
        return common_blocks(self.tokens[: self.extent.total], tokens)


class PrefixCache:
    """Shares rows of an arena, once it is told to (`use`)."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.used = False
        self._most_rows, self._shelf = 0, None
        self._entries: list[_Entry] = []
        self._clock = itertools.count(1)

    def use(self, *, most_rows: int, shelf: Shelf | None = None) -> None:
        """Share from now on, and keep at most `most_rows` of ended sequences, others on `shelf`.

        What is kept already is forgotten.
        """
        self.used, self._most_rows, self._shelf = True, most_rows, shelf
        self.clear()

    def open(self, tokens: Sequence[int], rows: int) -> Extent:
        """An extent with room for `rows` more than `tokens`, the longest known beginning in it."""
        wanted = np.asarray(tokens, np.int32)
        prefix, shared = self._find(wanted[:-1])  # the last token is read for its logits
        return self.reserve(len(wanted) - shared + rows, prefix, shared)

    def reserve(self, rows: int, prefix: Extent | None = None, shared: int | None = None) -> Extent:
        """`Arena.reserve`, forgetting ended sequences if it must."""
        while True:
            try:
                return self._arena.reserve(rows, prefix, shared)
            except OutOfRowsError:
                if not self._drop_oldest(besides=prefix):
                    raise

    def ensure(self, extent: Extent, rows: int) -> None:
        """`Arena.ensure`, forgetting ended sequences if it must."""
        while True:
            try:
                return self._arena.ensure(extent, rows)
            except OutOfRowsError:
                if not self._drop_oldest():
                    raise

    def known(self, tokens: Sequence[int]) -> int:
        """How many of the first tokens `open` would find in memory."""
        return self._longest(np.asarray(tokens[:-1], np.int32))[1]

    def enter(self, tokens: Sequence[int], extent: Extent) -> None:
        """A sequence begins to read `tokens`; others may build on what it has committed."""
        if self.used:
            self._entries.append(_Entry(np.asarray(tokens, np.int32), extent, running=True))

    def leave(self, tokens: Sequence[int], extent: Extent) -> None:
        """A sequence ends; `tokens` are those of its rows. Takes over the owner's use of them."""
        self._entries = [e for e in self._entries if not (e.running and e.extent is extent)]
        whole = extent.total // BLOCK * BLOCK
        text = np.asarray(tokens[:whole], np.int32)
        idle = [entry for entry in self._entries if not entry.running]
        if (
            whole - extent.shared < BLOCK
            or whole - extent.shared > self._most_rows
            or any(entry.common(text) == whole for entry in idle)
        ):
            self._arena.release(extent)
            return
        self._arena.truncate(extent, whole - extent.shared)
        self._arena.trim(extent)
        self._entries.append(_Entry(text, extent, running=False))
        self._touch(extent)
        while self._idle_rows() > self._most_rows:
            self._drop_oldest()

    def shelve(self, tokens: Sequence[int]) -> None:
        """Put what is known of these first tokens on the shelf too."""
        text = np.asarray(tokens, np.int32)
        extent, known = self._longest(text)
        if self._shelf and extent:
            self._shelf.put(text[:known], self._arena, extent)

    def clear(self) -> None:
        """Forget all ended sequences."""
        while self._drop_oldest():
            pass

    def _find(self, tokens: np.ndarray) -> tuple[Extent | None, int]:
        extent, known = self._longest(tokens)
        if fetched := self._fetch(tokens, known):
            extent, known = fetched, fetched.total
        if extent:
            self._touch(extent)
        return extent, known

    def _fetch(self, tokens: np.ndarray, known: int) -> Extent | None:
        try:
            extent = self._shelf.fetch(tokens, known, self._arena) if self._shelf else None
        except OutOfRowsError:
            return None
        if extent:
            self._entries.append(_Entry(tokens[: extent.total], extent, running=False))
        return extent

    def _longest(self, tokens: np.ndarray) -> tuple[Extent | None, int]:
        common = [(entry.common(tokens), entry.extent) for entry in self._entries]
        known, extent = max(common, key=lambda each: each[0], default=(0, None))
        return (extent, known) if known else (None, 0)

    def _touch(self, extent: Extent) -> None:
        """Used now, with everything it builds on."""
        now, chain = next(self._clock), set()
        while extent:
            chain.add(id(extent))
            extent = extent.prefix
        for entry in self._entries:
            if id(entry.extent) in chain:
                entry.used = now

    def _idle_rows(self) -> int:
        return sum(entry.extent.capacity for entry in self._entries if not entry.running)

    def _drop_oldest(self, besides: Extent | None = None) -> bool:
        """Forget the ended sequence that was not used for the longest; False if there is none."""
        idle = [e for e in self._entries if not e.running and e.extent is not besides]
        if not idle:
            return False
        oldest = min(idle, key=lambda entry: entry.used)
        self._entries.remove(oldest)
        self._arena.release(oldest.extent)
        return True
