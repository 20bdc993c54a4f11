"""CASD's lookup: branches copied from earlier occurrences of the end of the text.

Of all places whose preceding tokens match the end of the text, CASD keeps the longest matches, up
to `max_match` tokens, and proposes the continuation of each. The paper leaves open, and this index
decides: at least `min_match` tokens must match, ties go to the more recent place, and a
continuation that is a prefix of another one takes no branch of its own.

Places with the same last `min_match` tokens form a chain, most recent first, of which at most
`MAX_PLACES` are examined.
"""

import numpy as np

from graft.match.hash_table import (
    BORDER,
    compiled,
    hash_before,
    key_slot,
    run_after,
    run_before,
    slots_for,
)
from graft.match.matches import TextIndex

MAX_PLACES = 1024

# Columns of a branch, and rows of the trie: the integer fields of Matches and a rank.
_START, _LENGTH, _MATCHED = range(3)
_TOKEN, _PARENT, _MATCH, _COUNT, _TOTAL, _POSITION, _RANK = range(7)


@compiled
def _insert_places(text: np.ndarray, start: int, stop: int, chains: tuple, length: int) -> None:
    """Chain the places from `start` on to the last one with the same `length` tokens."""
    keys, latest, previous = chains
    run = run_before(text, start, length)
    for at in range(start, stop):
        run = 0 if text[at] == BORDER else run + 1
        previous[at] = -1
        if run >= length:
            key = hash_before(text, at + 1, length)
            slot = key_slot(keys, key)
            if keys[slot] == key:
                previous[at] = latest[slot]
            keys[slot] = key
            latest[slot] = at


@compiled
def _match_length(text: np.ndarray, place: int, end: np.ndarray, max_match: int) -> int:
    """The number of last tokens that the text up to `place` shares with `end`."""
    run, limit = 0, min(max_match, place + 1, len(end))
    while run < limit and text[place - run] == end[len(end) - 1 - run] != BORDER:
        run += 1
    return run


@compiled
def _latest_place(chains: tuple, end: np.ndarray, length: int, size: int) -> int:
    """The latest place of the last `length` tokens of `end` that has a continuation in the text of
    `size` tokens, or -1."""
    keys, latest, previous = chains
    if run_before(end, len(end), length) < length:
        return -1
    key = hash_before(end, len(end), length)
    slot = key_slot(keys, key)
    if keys[slot] != key:
        return -1
    return previous[size - 1] if latest[slot] == size - 1 else latest[slot]


@compiled
def _list_places(
    text: np.ndarray,
    end: np.ndarray,
    place: int,
    previous: np.ndarray,
    max_match: int,
    places: np.ndarray,
) -> int:
    """Fill `places` with (place, match length) from `place` on, most recent first; returns how
    many."""
    listed = 0
    while place >= 0 and listed < len(places):
        places[listed, 0] = place
        places[listed, 1] = _match_length(text, place, end, max_match)
        listed += 1
        place = previous[place]
    return listed


@compiled
def _common_prefix(text: np.ndarray, left: int, right: int, limit: int) -> int:
    run = 0
    while run < limit and text[left + run] == text[right + run]:
        run += 1
    return run


@compiled
def _row_for(text: np.ndarray, branches: np.ndarray, used: int, start: int, length: int) -> int:
    """The row of a continuation: a new one, or that of its prefix; -1 for none."""
    for row in range(used):
        shorter = min(length, branches[row, _LENGTH])
        if _common_prefix(text, branches[row, _START], start, shorter) == shorter:
            return row if length > branches[row, _LENGTH] else -1
    return used if used < len(branches) else -1


@compiled
def _all_full(branches: np.ndarray, length: int) -> bool:
    for row in range(len(branches)):
        if branches[row, _LENGTH] < length:
            return False
    return True


@compiled
def _choose(
    text: np.ndarray, size: int, places: np.ndarray, length: int, branches: np.ndarray, span: tuple
) -> int:
    """Fill `branches` from the longest matches down, within `span`; returns how many."""
    used = 0
    min_match, max_match = span
    for matched in range(max_match, min_match - 1, -1):
        for at in range(len(places)):
            if places[at, 1] != matched:
                continue
            start = places[at, 0] + 1
            run = run_after(text, start, min(start + length, size))
            row = _row_for(text, branches, used, start, run) if run > 0 else -1
            if row >= 0:
                branches[row, _START] = start
                branches[row, _LENGTH] = run
                branches[row, _MATCHED] = matched
                used = max(used, row + 1)
        if used == len(branches) and _all_full(branches, length):
            break
    return used


@compiled
def _merge(
    text: np.ndarray,
    branches: np.ndarray,
    confidence: np.ndarray,
    fields: np.ndarray,
    scores: np.ndarray,
) -> int:
    """Fill a trie with the branches, each a chain below the root; returns its size."""
    size = 0
    for branch in range(len(branches)):
        parent, score = -1, 1.0
        for step in range(branches[branch, _LENGTH]):
            place = branches[branch, _START] + step
            matched = branches[branch, _MATCHED] + step
            node = 0
            while node < size and not (
                fields[_PARENT, node] == parent and fields[_TOKEN, node] == text[place]
            ):
                node += 1
            if node == size:
                size += 1
                fields[_TOKEN, node], fields[_PARENT, node] = text[place], parent
                fields[_MATCH, node], fields[_POSITION, node] = matched, place
                fields[_COUNT, node], fields[_TOTAL, node] = 1, 1
                scores[node] = score * confidence[min(matched, len(confidence) - 1)]
            parent, score = node, scores[node]
    return size


@compiled
def _copy_best(trie: np.ndarray, scores: np.ndarray, found: np.ndarray, best: np.ndarray) -> None:
    """Move nodes to `found`, best first; parents stay before children. Overwrites `scores`."""
    for at in range(len(best)):
        node = 0
        for other in range(1, len(scores)):
            if scores[other] > scores[node]:
                node = other
        for field in range(_RANK):
            found[field, at] = trie[field, node]
        if trie[_PARENT, node] >= 0:
            found[_PARENT, at] = trie[_RANK, trie[_PARENT, node]]
        trie[_RANK, node] = at
        best[at] = scores[node]
        scores[node] = -1.0


@compiled
def _lookup(
    texts: tuple, chains: tuple, options: tuple, confidence: np.ndarray, work: tuple, found: tuple
) -> int:
    """Fill `found` with the best nodes; returns how many. `texts` is (text, its size, end)."""
    text, size, end = texts
    min_match, max_match, length = options
    places, branches, trie, scores = work
    latest = _latest_place(chains, end, min_match, size)
    listed = _list_places(text, end, latest, chains[2], max_match, places)
    span = (min_match, max_match)
    used = _choose(text, size, places[:listed], length, branches, span)
    nodes = _merge(text, branches[:used], confidence, trie, scores)
    fields, best = found
    nodes_found = min(nodes, len(best))
    _copy_best(trie, scores[:nodes], fields, best[:nodes_found])
    return nodes_found


class CopyIndex(TextIndex):
    """Copies from the longest matches of the end of the text, merged into a trie."""

    def __init__(
        self, *, max_match: int = 10, min_match: int = 2, branches: int = 2, length: int = 10
    ) -> None:
        self._options, self._context = (min_match, max_match, length), max_match
        self._work = (
            np.empty((MAX_PLACES, 2), dtype=np.int32),
            np.empty((branches, 3), dtype=np.int32),
            np.empty((_RANK + 1, branches * length), dtype=np.int32),
            np.empty(branches * length, dtype=np.float64),
        )
        super().__init__()

    def _find(
        self, end: np.ndarray, confidence: np.ndarray, fields: np.ndarray, scores: np.ndarray
    ) -> int:
        """The best nodes of the branches; a score is the product of the confidences."""
        texts, found = (self._text.tokens, self._text.size, end), (fields, scores)
        return _lookup(texts, self._chains, self._options, confidence, self._work, found)

    def _make_tables(self, capacity: int) -> None:
        slots = slots_for(capacity)
        self._chains = (
            np.zeros(slots, dtype=np.int64),  # keys: hashes of the last `min_match` tokens
            np.empty(slots, dtype=np.int32),  # their latest place
            np.empty(capacity, dtype=np.int32),  # of each place the previous one in its chain
        )

    def _insert(self, first: int, last: int) -> None:
        _insert_places(self._text.tokens, first, last, self._chains, self._options[0])
