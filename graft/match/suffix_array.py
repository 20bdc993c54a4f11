"""A datastore: continuations of the running text, found in suffix arrays on disk.

Texts and suffix arrays are memory-mapped: opening takes milliseconds, and a search reads only the
pages it needs. Binary search finds the longest suffix of the running text, up to `MAX_MATCH`
tokens, that has a continuation in the store. A border, greater than every token, separates
documents, so nothing matches or continues across them.

In a store of unrelated texts the longest match is often accidental: one token less of context with
many places predicts better than a long match in one place. A match of less than `RELIABLE_MATCH`
tokens in less than `MIN_PLACES` places is therefore shortened until it has them (docs/log.md has
the measurement).

A frequent match has too many places to count. `SAMPLE` of them are taken, evenly spaced over the
suffix array. The array is ordered by continuation, so each continuation is a contiguous range and
is sampled in proportion, with an error of less than one place per shard (random samples of 256 have
an error of 8 for a continuation of probability one half). REST takes the first places instead,
which are the continuations with small token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graft.match.continuations import Continuations, count_place
from graft.match.hash_table import compiled
from graft.match.matches import Matches
from graft.match.store_files import Manifest, ShardArrays, open_arrays

MAX_MATCH = 16
MIN_MATCH = 2
RELIABLE_MATCH = 7
MIN_PLACES = 16
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
    """The rank behind the last suffix that starts with the pattern's end and has a continuation."""
    low, border = bounds
    step, size = 1, len(pattern) - first
    high = low
    while high < len(suffixes) and _continues(text, suffixes[high], pattern, first, size, border):
        low, high, step = high + 1, high + step, 2 * step
    high = min(high, len(suffixes))
    while low < high:
        middle = (low + high) >> 1
        if _continues(text, suffixes[middle], pattern, first, size, border):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _continues(
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
    """Length of the longest end of the pattern, at least `min_match`, with a continuation; or 0.

    A shorter end occurs wherever a longer one does, so binary search finds the length too. `found`
    gets the first rank and that behind the last.
    """
    min_match, border = bounds
    length, low, high = 0, min_match, len(pattern)
    while low <= high:
        middle = (low + high + 1) >> 1 if length else low
        first = len(pattern) - middle
        rank = _first_place(text, suffixes, pattern, first)
        if rank < len(suffixes) and _continues(
            text, suffixes[rank], pattern, first, middle, border
        ):
            length, low = middle, middle + 1
            found[0] = rank
        else:
            high = middle - 1
    if length:
        first = len(pattern) - length
        found[1] = _after_last(text, suffixes, pattern, first, (found[0], border))
    return length


@compiled
def _count_sample(trie: tuple, arrays: tuple, ranks: tuple, sample: tuple, lengths: tuple) -> None:
    """Count the continuations of the sampled places of a shard.

    Sample i is hit (2 i + 1) hits / (2 taken); the shard has the hits from `before` on.
    """
    text, suffixes = arrays
    first, last = ranks
    hits, taken, before = sample
    matched, length, border = lengths
    # The first i whose place is in the shard.
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
    """Places of the longest match: per shard the first rank and that behind the last."""

    length: int = 0
    ranks: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """The number of places."""
        return sum(last - first for first, last in self.ranks)


class Store:
    """An open datastore; documents added after opening are not seen."""

    def __init__(self, manifest: Manifest, shards: list[ShardArrays]) -> None:
        self.manifest = manifest
        self._shards = [(shard.text, shard.suffixes) for shard in shards]

    @property
    def border(self) -> int:
        """The id that separates documents, greater than all tokens."""
        return self.manifest.vocabulary

    def index(self) -> "StoreIndex":
        """A TokenIndex over the store for one running text."""
        return StoreIndex(self)

    def search(self, pattern: np.ndarray, *, min_match: int = MIN_MATCH) -> Hits:
        """Find the longest end of the pattern (int32 ids, up to `MAX_MATCH`)."""
        best, found = 0, np.zeros(2, dtype=np.int64)
        ranks: list[tuple[int, int]] = []
        for text, suffixes in self._shards:
            bounds = (max(best, min_match), self.border)
            length = _longest(text, suffixes, pattern, bounds, found)
            if length > best:
                best, ranks = length, [(0, 0)] * len(ranks)
            ranks.append((int(found[0]), int(found[1])) if length else (0, 0))
        return Hits(best, tuple(ranks))

    def search_reliable(self, pattern: np.ndarray) -> Hits:
        """The same for the longest end with `RELIABLE_MATCH` tokens or `MIN_PLACES` places, else
        for the one with the most places."""
        best = self.search(pattern)
        for length in range(min(best.length, RELIABLE_MATCH) - 1, MIN_MATCH - 1, -1):
            if best.length >= RELIABLE_MATCH or best.count >= MIN_PLACES:
                break
            shorter = self.search(pattern[-length:], min_match=length)
            if shorter.count > best.count:
                best = shorter
        return best

    def count(self, hits: Hits, trie: Continuations, *, sample: int) -> int:
        """Fill the trie with the continuations of an even sample of the hits; returns how many."""
        trie.clear()
        total = hits.count
        taken, before = min(total, sample), 0
        lengths = (hits.length, trie.length, self.border)
        for arrays, ranks in zip(self._shards, hits.ranks, strict=True):
            if ranks[0] < ranks[1]:
                _count_sample(trie.arrays, arrays, ranks, (total, taken, before), lengths)
                before += ranks[1] - ranks[0]
        return taken

    def count_first(self, hits: Hits, trie: Continuations, *, max_places: int) -> None:
        """Fill the trie with the continuations of the first hits of every shard, as REST does."""
        trie.clear()
        lengths = (hits.length, trie.length, self.border)
        for arrays, (first, last) in zip(self._shards, hits.ranks, strict=True):
            if taken := min(last - first, max_places):
                ranks = (first, first + taken)
                _count_sample(trie.arrays, arrays, ranks, (taken, taken, 0), lengths)


def open_store(path: str | Path, tokenizer_fingerprint: str | None) -> Store:
    """Open a datastore that was made with this tokenizer (None: with any)."""
    return Store(*open_arrays(Path(path).expanduser(), tokenizer_fingerprint))


class StoreLookup:
    """The TokenIndex part of a store: the search pattern is the end of a running text."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: list[int] = []

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens; an id that the store's tokenizer does not have is a border."""
        self._recent = self._joined([int(token) for token in tokens[-MAX_MATCH:]])

    def border(self) -> None:
        """End a document."""
        self._recent.clear()

    def lookup(self, limit: int, confidence: np.ndarray, after: Sequence[int] = ()) -> Matches:
        """See TokenIndex; positions are -1: not in the running text."""
        return self._find(np.array(self._joined(after), dtype=np.int32), limit, confidence)

    def _find(self, end: np.ndarray, limit: int, confidence: np.ndarray) -> Matches:
        """Continuations of a pattern."""
        raise NotImplementedError

    def _joined(self, more: Sequence[int]) -> list[int]:
        tokens = [*self._recent, *more]
        known = [0 <= token < self._store.border for token in more]
        if not all(known):
            tokens = tokens[len(tokens) - known[::-1].index(False) :]
        return tokens[-MAX_MATCH:]


class StoreIndex(StoreLookup):
    """A TokenIndex over a store: continuations of the longest reliable match as a trie."""

    def __init__(self, store: Store, *, sample: int = SAMPLE, length: int = LENGTH) -> None:
        super().__init__(store)
        self._sample = sample
        self._trie = Continuations(sample, length)

    def _find(self, end: np.ndarray, limit: int, confidence: np.ndarray) -> Matches:
        hits = self._store.search_reliable(end)
        self._store.count(hits, self._trie, sample=self._sample)
        return self._trie.best(limit, hits.length, confidence)
