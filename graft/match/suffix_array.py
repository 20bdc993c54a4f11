"""A datastore: "what followed this before?" over texts on disk, any number and size of them.

Texts and their suffix arrays are mapped, not read: opening takes milliseconds, and what a search
does not touch stays on disk. The longest end of the running text, up to `LONGEST` tokens, that
stands in the store with something after it is found by binary search; a border, greater than every
token, stands between documents, so nothing matches or continues across them.

In a store of foreign texts the longest match is often a chance one: what followed a few tokens in
one place says less than what followed one token fewer in many. So a match of less than `SURE`
tokens in less than `ENOUGH` places is shortened until it has them (measured in docs/log.md).

A frequent match has more places than can be looked at. `SAMPLE` of them are taken, evenly spaced
over the suffix array. Those are not random places: they are in the order of what follows. But just
therefore every continuation, of any length up to the depth of the sort, is a contiguous stretch of
each shard's and is met in proportion, wrong by less than one place a shard (random samples of 256
are wrong by 8 where half of them goes on alike). REST takes the first places instead, which are the
continuations with small token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graft.match.continuations import Continuations, count_place
from graft.match.hash_table import compiled
from graft.match.matches import Matches
from graft.match.store_files import Manifest, ShardArrays, open_arrays

LONGEST = 16
SHORTEST = 2
SURE = 7
ENOUGH = 16
SAMPLE = 256
LENGTH = 16


@compiled
def _order(text: np.ndarray, start: int, pattern: np.ndarray, first: int) -> int:
    """-1, 0 or 1: whether the text at `start` is less than, begins with or exceeds the pattern."""
    for at in range(first, len(pattern)):
        place = start + at - first
        if place >= len(text) or text[place] > pattern[at]:
            return 1
        if text[place] < pattern[at]:
            return -1
    return 0


@compiled
def _first_place(text: np.ndarray, suffixes: np.ndarray, pattern: np.ndarray, first: int) -> int:
    """The rank of the first suffix that is not less than the end of the pattern."""
    low, high = 0, len(suffixes)
    while low < high:
        middle = (low + high) >> 1
        if _order(text, suffixes[middle], pattern, first) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _after_last(
    text: np.ndarray, suffixes: np.ndarray, pattern: np.ndarray, first: int, bounds: tuple
) -> int:
    """The rank behind the last suffix with that beginning and, before a border, more."""
    low, border = bounds
    step, size = 1, len(pattern) - first
    high = low
    while high < len(suffixes) and _goes_on(text, suffixes[high], pattern, first, size, border):
        low, high, step = high + 1, high + step, 2 * step
    high = min(high, len(suffixes))
    while low < high:
        middle = (low + high) >> 1
        if _goes_on(text, suffixes[middle], pattern, first, size, border):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _goes_on(
    text: np.ndarray, start: int, pattern: np.ndarray, first: int, size: int, border: int
) -> bool:
    after = start + size
    if after >= len(text) or text[after] == border:
        return False
    return _order(text, start, pattern, first) == 0


@compiled
def _longest(
    text: np.ndarray, suffixes: np.ndarray, pattern: np.ndarray, bounds: tuple, found: np.ndarray
) -> int:
    """The longest end of the pattern, `least` or more, with a continuation; 0 if there is none.

    A shorter end stands wherever a longer one does, so lengths are searched by halving too.
    `found` gets the first rank and that behind the last.
    """
    least, border = bounds
    length, low, high = 0, least, len(pattern)
    while low <= high:
        middle = (low + high + 1) >> 1 if length else low
        first = len(pattern) - middle
        rank = _first_place(text, suffixes, pattern, first)
        if rank < len(suffixes) and _goes_on(text, suffixes[rank], pattern, first, middle, border):
            length, low = middle, middle + 1
            found[0] = rank
        else:
            high = middle - 1
    if length:
        first = len(pattern) - length
        found[1] = _after_last(text, suffixes, pattern, first, (found[0], border))
    return length


@compiled
def _well_known(
    text: np.ndarray, suffixes: np.ndarray, pattern: np.ndarray, bounds: tuple, found: np.ndarray
) -> int:
    """The same for the longest end that is `SURE` by its length or stands in `ENOUGH` places; where
    there is none, for that in the most places."""
    least, border = bounds
    length = _longest(text, suffixes, pattern, bounds, found)
    for shorter in range(min(length, SURE) - 1, least - 1, -1):
        if length >= SURE or found[1] - found[0] >= ENOUGH:
            break
        first = len(pattern) - shorter
        rank = _first_place(text, suffixes, pattern, first)
        behind = _after_last(text, suffixes, pattern, first, (rank, border))
        if behind - rank > found[1] - found[0]:
            length = shorter
            found[0], found[1] = rank, behind
    return length


@compiled
def _count_sample(trie: tuple, arrays: tuple, ranks: tuple, sample: tuple, reading: tuple) -> None:
    """Count the continuations of those of a shard's places that the sample takes.

    The sample takes place (2 i + 1) hits / (2 taken) of all hits; the shard has those from `before`
    on.
    """
    text, suffixes = arrays
    first, last = ranks
    hits, taken, before = sample
    matched, length, border = reading
    # The least i whose place is not before the shard's.
    i = max(0, (2 * taken * before // hits - 1) // 2)
    while (2 * i + 1) * hits // (2 * taken) < before:
        i += 1
    while i < taken:
        rank = first + (2 * i + 1) * hits // (2 * taken) - before
        if rank >= last:
            return
        count_place(trie, text, suffixes[rank] + matched, length, border)
        i += 1


@dataclass(frozen=True, slots=True)
class Hits:
    """Where the longest match stands: per shard the first rank and that behind the last."""

    length: int = 0
    ranks: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """In how many places."""
        return sum(last - first for first, last in self.ranks)


class Store:
    """An opened datastore; it stays what it was when opened, whatever is added meanwhile."""

    def __init__(self, manifest: Manifest, shards: list[ShardArrays]) -> None:
        self.manifest = manifest
        self._shards = [(shard.text, shard.suffixes) for shard in shards]

    @property
    def border(self) -> int:
        """The id between documents; all tokens are less."""
        return self.manifest.vocabulary

    def index(self) -> "StoreIndex":
        """A TokenIndex that answers from the store, for one running text."""
        return StoreIndex(self)

    def search(self, pattern: np.ndarray, *, shortest: int = SHORTEST) -> Hits:
        """Where the longest end of the pattern (int32 ids, up to `LONGEST`) stands."""
        best, found = 0, np.zeros(2, dtype=np.int64)
        ranks: list[tuple[int, int]] = []
        for text, suffixes in self._shards:
            bounds = (max(best, shortest), self.border)
            length = _longest(text, suffixes, pattern, bounds, found)
            if length > best:
                best, ranks = length, [(0, 0)] * len(ranks)
            ranks.append((int(found[0]), int(found[1])) if length else (0, 0))
        return Hits(best, tuple(ranks))

    def search_well_known(self, pattern: np.ndarray) -> Hits:
        """The same for the longest end that is `SURE` by its length or stands in `ENOUGH` places;
        where there is none, for that in the most places."""
        if len(self._shards) == 1:  # most stores: one compiled call
            found = np.zeros(2, dtype=np.int64)
            length = _well_known(*self._shards[0], pattern, (SHORTEST, self.border), found)
            return Hits(length, ((int(found[0]), int(found[1])) if length else (0, 0),))
        best = self.search(pattern)
        for length in range(min(best.length, SURE) - 1, SHORTEST - 1, -1):
            if best.length >= SURE or best.count >= ENOUGH:
                break
            shorter = self.search(pattern[-length:], shortest=length)
            if shorter.count > best.count:
                best = shorter
        return best

    def count(self, hits: Hits, trie: Continuations, *, sample: int) -> int:
        """Fill the trie with what follows the hits, or an even sample of them; how many."""
        trie.clear()
        total = hits.count
        taken, before = min(total, sample), 0
        reading = (hits.length, trie.length, self.border)
        for arrays, ranks in zip(self._shards, hits.ranks, strict=True):
            if ranks[0] < ranks[1]:
                _count_sample(trie.arrays, arrays, ranks, (total, taken, before), reading)
                before += ranks[1] - ranks[0]
        return taken

    def count_first(self, hits: Hits, trie: Continuations, *, most: int) -> None:
        """Fill the trie with what follows the first `most` hits of every shard, as REST does."""
        trie.clear()
        reading = (hits.length, trie.length, self.border)
        for arrays, (first, last) in zip(self._shards, hits.ranks, strict=True):
            if taken := min(last - first, most):
                ranks = (first, first + taken)
                _count_sample(trie.arrays, arrays, ranks, (taken, taken, 0), reading)


def open_store(path: str | Path, tokenizer_fingerprint: str | None) -> Store:
    """Open a datastore that was made with this tokenizer (None: whichever it was)."""
    return Store(*open_arrays(Path(path).expanduser(), tokenizer_fingerprint))


class RecentTokens:
    """The end of a running text since the last border: all that a store is asked about."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: list[int] = []

    @property
    def tokens(self) -> np.ndarray:
        """The last tokens, at most `LONGEST`."""
        return np.array(self._recent, dtype=np.int32)

    def tokens_and(self, more: Sequence[int]) -> np.ndarray:
        """The last tokens as if these, which are not kept, had come too."""
        return np.array(self._and(more), dtype=np.int32)

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens; an id that the store's tokenizer does not have is a border."""
        self._recent = self._and([int(token) for token in tokens[-LONGEST:]])

    def border(self) -> None:
        """End a document."""
        self._recent.clear()

    def _and(self, more: Sequence[int]) -> list[int]:
        tokens = [*self._recent, *more]
        known = [0 <= token < self._store.border for token in more]
        if not all(known):
            tokens = tokens[len(tokens) - known[::-1].index(False) :]
        return tokens[-LONGEST:]


class StoreIndex(RecentTokens):
    """A TokenIndex over a store: continuations of the longest well-known match as a trie."""

    def __init__(self, store: Store, *, sample: int = SAMPLE, length: int = LENGTH) -> None:
        super().__init__(store)
        self._sample = sample
        self._trie = Continuations(sample, length)

    def lookup(self, limit: int, confidence: np.ndarray) -> Matches:
        """At most `limit` nodes; the positions are -1, outside the running text."""
        return self._lookup(self.tokens, limit, confidence)

    def lookup_after(self, tokens: Sequence[int], limit: int, confidence: np.ndarray) -> Matches:
        """The same as if `tokens` stood at the end of the text."""
        return self._lookup(self.tokens_and(tokens), limit, confidence)

    def _lookup(self, end: np.ndarray, limit: int, confidence: np.ndarray) -> Matches:
        hits = self._store.search_well_known(end)
        self._store.count(hits, self._trie, sample=self._sample)
        return self._trie.best(limit, hits.length, confidence)
