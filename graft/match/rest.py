"""REST's selection of continuations (He et al., 2023), for comparison with its published figures.

REST takes the first 5,000 places of the longest match, in suffix array order, counts all prefixes
of their next 10 tokens (RASD: 8) and keeps the 64 most frequent. It then drops those with the most
distinct tokens until the numbers of distinct tokens add up to at most 64. Unlike REST, nothing
continues across documents, ties go to the prefix found first, and no match gives no draft.
"""

import numpy as np

from graft.match.continuations import COUNT, DEPTH, NOT_IN_TEXT, PARENT, TOKEN, TOTAL, Continuations
from graft.match.hash_table import compiled
from graft.match.matches import Matches
from graft.match.suffix_array import Store, StoreLookup

PLACES = 5000
LENGTH = 10
CHOICES = 64


class RestIndex(StoreLookup):
    """A TokenIndex over a store; a score is the share of the places with that continuation."""

    def __init__(self, store: Store, *, length: int = LENGTH, nodes: int = CHOICES) -> None:
        super().__init__(store)
        self._nodes = min(nodes, CHOICES)
        self._trie = Continuations(PLACES * max(1, len(store.manifest.shards)), length)
        self._work = (np.empty(CHOICES, dtype=np.int32), np.empty(CHOICES, dtype=np.int32))

    def _find(self, end: np.ndarray, limit: int, confidence: np.ndarray) -> Matches:
        """REST's choices, most frequent first; `confidence` is not used."""
        hits = self._store.search(end)
        self._store.count_first(hits, self._trie, max_places=PLACES)
        limit = min(limit, self._nodes)
        fields, scores = np.empty((6, limit), np.int32), np.empty(limit, np.float32)
        size = _choose(self._trie.arrays, hits.length, self._work, fields, scores)
        return Matches(fields, scores[:size])


@compiled
def _choose(trie: tuple, matched: int, work: tuple, fields: np.ndarray, scores: np.ndarray) -> int:
    """Fill the columns of `fields` with REST's choices and their shares; returns how many."""
    used, nodes, _ = trie
    chosen, distinct = work
    count = _most_frequent(nodes, used[0], chosen)
    count = min(_cut(nodes, chosen, distinct, count), fields.shape[1])
    for at in range(count):
        node = chosen[at]
        parent = nodes[node, PARENT]
        fields[0, at] = nodes[node, TOKEN]
        fields[1, at] = _place(chosen, at, parent)
        fields[2, at] = matched + nodes[parent, DEPTH]
        fields[3, at] = nodes[node, COUNT]
        fields[4, at] = nodes[parent, TOTAL]
        fields[5, at] = NOT_IN_TEXT
        scores[at] = nodes[node, COUNT] / nodes[0, TOTAL]
    return count


@compiled
def _most_frequent(nodes: np.ndarray, size: int, chosen: np.ndarray) -> int:
    """Fill `chosen` with the most frequent nodes, ties to the first; returns how many.

    A node is created after its parent and counted no more often, so parents come first.
    """
    count = 0
    for node in range(1, size):
        if count < len(chosen):
            count += 1
        elif nodes[node, COUNT] <= nodes[chosen[count - 1], COUNT]:
            continue
        at = count - 1
        while at > 0 and nodes[chosen[at - 1], COUNT] < nodes[node, COUNT]:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = node
    return count


@compiled
def _cut(nodes: np.ndarray, chosen: np.ndarray, distinct: np.ndarray, count: int) -> int:
    """Drop nodes until their distinct tokens add up to `CHOICES`; returns how many remain."""
    total = 0
    for at in range(count):
        distinct[at] = _distinct_tokens(nodes, chosen[at])
        total += distinct[at]
    while total > CHOICES:
        # Ties go to the deepest, so that children are dropped before parents; then to the last.
        worst = 0
        for at in range(1, count):
            more = distinct[at] - distinct[worst]
            deeper = nodes[chosen[at], DEPTH] - nodes[chosen[worst], DEPTH]
            if more > 0 or (more == 0 and deeper >= 0):
                worst = at
        total -= distinct[worst]
        count -= 1
        for at in range(worst, count):
            chosen[at], distinct[at] = chosen[at + 1], distinct[at + 1]
    return count


@compiled
def _distinct_tokens(nodes: np.ndarray, node: int) -> int:
    """The number of distinct tokens on the path to a node."""
    count = 0
    while node:
        above = nodes[node, PARENT]
        while above and nodes[above, TOKEN] != nodes[node, TOKEN]:
            above = nodes[above, PARENT]
        count += above == 0
        node = nodes[node, PARENT]
    return count


@compiled
def _place(chosen: np.ndarray, stop: int, node: int) -> int:
    """The index of a node among those chosen before `stop`; -1 for the root."""
    for at in range(stop):
        if chosen[at] == node:
            return at
    return -1
