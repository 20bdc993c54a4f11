"""Prefix cache: KV cache rows of earlier prompts, reused for prompts with the same prefix.

Keys and values of a shared prefix are exactly those that the new prompt would compute itself.
Running sequences share their committed rows; rows of finished ones stay cached until they are
evicted, the least recently used first. Whole blocks are shared (`arena.BLOCK`), so outputs keep
their bits where the forward is exact (`LoadedModel.is_exact`). Prompts of different salts never
share: the time to the first token must not reveal the prompts of other tenants.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from graft.models.arena import BLOCK, Arena, E, Extent, OutOfRowsError, between
from graft.models.block_index import BlockIndex

Taken = TypeVar("Taken")


class PrefixStore(Protocol):
    """A second tier of the cache, such as a disk (`prefix_files.py`)."""

    def fetch(self, tokens: np.ndarray, known: int, arena: Arena) -> Extent | None:
        """An extent with the longest stored prefix of `tokens`, if it has more than `known`."""

    def put(self, tokens: np.ndarray, arena: Arena, extent: Extent) -> None:
        """Store the rows of these tokens, the first ones of the extent."""


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """Tokens, and the salt of the prompts that may share them."""

    tokens: np.ndarray
    salt: str


class PrefixCache:
    """Shares rows of an arena once `use` has enabled it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.used = False
        self.max_rows, self._store = 0, None
        self._texts: dict[str, BlockIndex] = defaultdict(BlockIndex)  # by salt
        self._running: dict[Extent, _Text] = {}  # the tokens that others may share
        self._idle: dict[Extent, _Text] = {}  # least recently used first
        self._idle_rows = 0

    def use(self, *, max_rows: int, store: PrefixStore | None = None) -> None:
        """Enable sharing, and keep at most `max_rows` of finished sequences; `store` is a second
        tier, for rows without recurrent states. Clears the cache."""
        self.used, self.max_rows = True, max_rows
        self._store = None if self._arena.storage.state_bytes else store
        self.clear()

    def open(
        self, tokens: Sequence[int], rows: int, *, most: int | None = None, salt: str = ""
    ) -> Extent:
        """An extent for `tokens` and `rows` more, on top of the longest cached prefix of at most
        `most` tokens with the same `salt`."""
        wanted = np.asarray(tokens, np.int32)
        prefix, shared = self._find(wanted[:-1][:most], salt)  # the last token's logits are needed
        return self.reserve(len(wanted) - shared + rows, prefix, shared)

    def reserve(self, rows: int, prefix: Extent | None = None, shared: int | None = None) -> Extent:
        """`Arena.reserve`; evicts finished sequences if it must."""
        return self._with_room(lambda: self._arena.reserve(rows, prefix, shared), kept=prefix)

    def place(self, extent: E) -> E:
        """`Arena.place`; evicts finished sequences if it must."""
        return self._with_room(lambda: self._arena.place(extent))

    def ensure(self, extent: Extent, rows: int) -> None:
        """`Arena.ensure`; evicts finished sequences if it must."""
        self._with_room(lambda: self._arena.ensure(extent, rows))

    def _with_room(self, take: Callable[[], Taken], kept: Extent | None = None) -> Taken:
        while True:
            try:
                return take()
            except OutOfRowsError:
                if not self._drop_oldest(kept):
                    raise

    def is_coming(self, tokens: Sequence[int], *, most: int | None = None, salt: str = "") -> bool:
        """Whether running sequences are about to prefill more of the prefix than is cached."""
        if salt not in self._texts or not self._running or len(tokens) <= BLOCK:
            return False
        wanted, texts = np.asarray(tokens[:-1][:most], np.int32), self._texts[salt]
        return texts.common(wanted) > texts.longest(wanted)[1]

    def enter(
        self, tokens: Sequence[int], extent: Extent, *, most: int | None = None, salt: str = ""
    ) -> None:
        """Register a running sequence: prompts of the same `salt` may share what it has committed
        of the first `most` tokens."""
        if self.used:
            text = self._running[extent] = _Text(np.asarray(tokens[:most], np.int32), salt)
            self._texts[salt].add(text.tokens, extent)

    def leave(
        self, tokens: Sequence[int], extent: Extent, *, most: int | None = None, salt: str = ""
    ) -> None:
        """Take over the rows of a finished sequence, which hold `tokens`: cached for prompts of the
        same `salt`, at most the first `most`, or released."""
        if read := self._running.pop(extent, None):
            self._forget(read, extent)
        whole = min(extent.total, len(tokens[:most])) // BLOCK * BLOCK
        new = whole - extent.shared
        text = _Text(np.asarray(tokens[:whole], np.int32), salt)
        pinned = extent.pinned > whole  # by other answers to the same prompt
        if new < BLOCK or new > self.max_rows or pinned or self._keeps(text):
            self._arena.release(extent)
            return
        self._arena.truncate(extent, new)
        self._arena.trim(extent)
        self._keep(text, extent)
        self._touch(extent)
        while self._idle_rows > self.max_rows:
            self._drop_oldest()

    def persist(self, tokens: Sequence[int]) -> None:
        """Write the cached prefix of these tokens to the store."""
        text = np.asarray(tokens, np.int32)
        extent, known = self._texts[""].longest(text)
        if self._store and extent:
            self._store.put(text[:known], self._arena, extent)

    def clear(self) -> None:
        """Evict all finished sequences."""
        while self._drop_oldest():
            pass

    def _find(self, tokens: np.ndarray, salt: str) -> tuple[Extent | None, int]:
        extent, known = self._texts[salt].longest(tokens) if salt in self._texts else (None, 0)
        if extent:
            known = self._arena.storage.resumable(between(extent.segments, 0, known))
            extent = extent if known else None
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
        """Whether a finished sequence holds all of this text, which is in whole blocks."""
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
        """Mark as most recently used, after the extents it shares."""
        if extent.prefix:
            self._touch(extent.prefix)
        if extent in self._idle:
            self._idle[extent] = self._idle.pop(extent)

    def _drop_oldest(self, kept: Extent | None = None) -> bool:
        """Evict the least recently used finished sequence; False if there is none."""
        oldest = next((extent for extent in self._idle if extent is not kept), None)
        if oldest is None:
            return False
        self._forget(self._idle.pop(oldest), oldest)
        self._idle_rows -= oldest.capacity
        self._arena.release(oldest)
        return True
