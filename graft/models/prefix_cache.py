"""Rows of texts read before, for prompts that begin the same.

A prompt that starts with a document, or continues a chat, shares its first tokens with an earlier
one. Their keys and values are exactly those it would compute itself, so it builds on them. Running
sequences are shared from while they run; ended ones stay until the room is needed, the longest
unused first. Sharing is in whole blocks (`arena.BLOCK`), which keeps outputs the same to the last
bit where the forward is (`forward_panels`). Prompts of different salts never share: how soon an
answer begins tells nobody what others have asked.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from graft.models.arena import BLOCK, Arena, E, Extent, OutOfRowsError
from graft.models.block_index import BlockIndex

Taken = TypeVar("Taken")


class PrefixStore(Protocol):
    """A slower place for rows, such as a disk (`prefix_files.py`)."""

    def fetch(self, tokens: np.ndarray, known: int, arena: Arena) -> Extent | None:
        """An extent with rows of the first tokens, if it has sound ones of more than `known`."""

    def put(self, tokens: np.ndarray, arena: Arena, extent: Extent) -> None:
        """Keep the rows of these tokens, the first ones of the extent."""


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """Tokens, and the salt of those who may build on them."""

    tokens: np.ndarray
    salt: str


class PrefixCache:
    """Shares rows of an arena, once it is told to (`use`)."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.used = False
        self._most_rows, self._store = 0, None
        self._texts: dict[str, BlockIndex] = defaultdict(BlockIndex)  # of all sequences, by salt
        self._running: dict[Extent, _Text] = {}  # the tokens that others may build on
        self._idle: dict[Extent, _Text] = {}  # the longest unused first
        self._idle_rows = 0

    def use(self, *, most_rows: int, store: PrefixStore | None = None) -> None:
        """Share from now on, and keep at most `most_rows` of ended sequences, others on `store`.

        What is kept already is forgotten.
        """
        self.used, self._most_rows, self._store = True, most_rows, store
        self.clear()

    def open(
        self, tokens: Sequence[int], rows: int, *, most: int | None = None, salt: str = ""
    ) -> Extent:
        """An extent with room for `rows` more than `tokens`, the longest known beginning in it, of
        at most `most` tokens, read for prompts of the same `salt`."""
        wanted = np.asarray(tokens, np.int32)
        prefix, shared = self._find(wanted[:-1][:most], salt)  # the last is read for its logits
        return self.reserve(len(wanted) - shared + rows, prefix, shared)

    def reserve(self, rows: int, prefix: Extent | None = None, shared: int | None = None) -> Extent:
        """`Arena.reserve`, forgetting ended sequences if it must."""
        return self._with_room(lambda: self._arena.reserve(rows, prefix, shared), besides=prefix)

    def place(self, extent: E) -> E:
        """`Arena.place`, forgetting ended sequences if it must."""
        return self._with_room(lambda: self._arena.place(extent))

    def ensure(self, extent: Extent, rows: int) -> None:
        """`Arena.ensure`, forgetting ended sequences if it must."""
        self._with_room(lambda: self._arena.ensure(extent, rows))

    def _with_room(self, take: Callable[[], Taken], besides: Extent | None = None) -> Taken:
        while True:
            try:
                return take()
            except OutOfRowsError:
                if not self._drop_oldest(besides):
                    raise

    def is_coming(self, tokens: Sequence[int], *, most: int | None = None, salt: str = "") -> bool:
        """Whether `open` will find more of the first tokens once others have read their own."""
        if salt not in self._texts or not self._running or len(tokens) <= BLOCK:
            return False
        wanted, texts = np.asarray(tokens[:-1][:most], np.int32), self._texts[salt]
        return texts.common(wanted) > texts.longest(wanted)[1]

    def enter(
        self, tokens: Sequence[int], extent: Extent, *, most: int | None = None, salt: str = ""
    ) -> None:
        """A sequence begins to read `tokens`; others of the same `salt` may build on what it has
        committed of the first, at most `most`."""
        if self.used:
            text = self._running[extent] = _Text(np.asarray(tokens[:most], np.int32), salt)
            self._texts[salt].add(text.tokens, extent)

    def leave(
        self, tokens: Sequence[int], extent: Extent, *, most: int | None = None, salt: str = ""
    ) -> None:
        """A sequence ends; `tokens` are those of its rows, of which others of the same `salt` may
        have the first, at most `most`. Takes over the owner's use of them."""
        if read := self._running.pop(extent, None):
            self._forget(read, extent)
        whole = min(extent.total, len(tokens[:most])) // BLOCK * BLOCK
        new = whole - extent.shared
        text = _Text(np.asarray(tokens[:whole], np.int32), salt)
        built_on = extent.pinned > whole  # by the other answers to the same prompt
        if new < BLOCK or new > self._most_rows or built_on or self._keeps(text):
            self._arena.release(extent)
            return
        self._arena.truncate(extent, new)
        self._arena.trim(extent)
        self._keep(text, extent)
        self._touch(extent)
        while self._idle_rows > self._most_rows:
            self._drop_oldest()

    def persist(self, tokens: Sequence[int]) -> None:
        """Put what is known of these first tokens on the store too."""
        text = np.asarray(tokens, np.int32)
        extent, known = self._texts[""].longest(text)
        if self._store and extent:
            self._store.put(text[:known], self._arena, extent)

    def clear(self) -> None:
        """Forget all ended sequences."""
        while self._drop_oldest():
            pass

    def _find(self, tokens: np.ndarray, salt: str) -> tuple[Extent | None, int]:
        extent, known = self._texts[salt].longest(tokens) if salt in self._texts else (None, 0)
        if not salt and (fetched := self._fetch(tokens, known)):
            extent, known = fetched, fetched.total
        if extent:
            self._touch(extent)
        return extent, known

    def _fetch(self, tokens: np.ndarray, known: int) -> Extent | None:
        try:
            extent = self._store.fetch(tokens, known, self._arena) if self._store else None
        except OutOfRowsError:
            return None
        if extent:
            self._keep(_Text(tokens[: extent.total], ""), extent)
        return extent

    def _keeps(self, text: _Text) -> bool:
        """Whether an ended sequence has all of this text, which is in whole blocks."""
        texts = self._texts.get(text.salt)
        alike = texts.beginning_with(text.tokens) if texts else []
        return any(extent in self._idle for extent in alike)

    def _keep(self, text: _Text, extent: Extent) -> None:
        self._idle[extent] = text
        self._idle_rows += extent.capacity
        self._texts[text.salt].add(text.tokens, extent)

    def _forget(self, text: _Text, extent: Extent) -> None:
        texts = self._texts[text.salt]
        texts.remove(text.tokens, extent)
        if not texts:
            del self._texts[text.salt]

    def _touch(self, extent: Extent) -> None:
        """Used now, after everything it builds on."""
        if extent.prefix:
            self._touch(extent.prefix)
        if extent in self._idle:
            self._idle[extent] = self._idle.pop(extent)

    def _drop_oldest(self, besides: Extent | None = None) -> bool:
        """Forget the ended sequence that was not used for the longest; False if there is none."""
        oldest = next((extent for extent in self._idle if extent is not besides), None)
        if oldest is None:
            return False
        self._forget(self._idle.pop(oldest), oldest)
        self._idle_rows -= oldest.capacity
        self._arena.release(oldest)
        return True
