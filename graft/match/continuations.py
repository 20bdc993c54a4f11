"""A trie of counted continuations, and its most probable nodes.

The arrays are allocated once; every search clears the nodes it used. A child is found by hashing
(parent, token), so the counts do not depend on the order of the places.
"""

import numpy as np

from graft.match.hash_table import compiled, pair_slot
from graft.match.matches import Matches

UNSEEN = 0.05  # count of all continuations not seen yet
MIN_SCORE = 0.01  # nodes less probable than this are not returned
NOT_IN_TEXT = -1  # the position of a token that is not in the running text

# Columns of a node; node 0 is the root, the end of the running text. SLOT: of the hash table.
TOKEN, PARENT, COUNT, TOTAL, DEPTH, SLOT = range(6)


@compiled
def _clear(used: np.ndarray, nodes: np.ndarray, slots: np.ndarray) -> None:
    for node in range(1, used[0]):
        slots[nodes[node, SLOT]] = 0
    used[0] = 1
    nodes[0, COUNT] = nodes[0, TOTAL] = nodes[0, DEPTH] = 0


@compiled
def _child(used: np.ndarray, nodes: np.ndarray, slots: np.ndarray, parent: int, token: int) -> int:
    """The child of a node by a token, created if missing."""
    mask = len(slots) - 1
    slot = pair_slot(parent, token, mask)
    while slots[slot] != 0:
        node = slots[slot]
        if nodes[node, PARENT] == parent and nodes[node, TOKEN] == token:
            return node
        slot = (slot + 1) & mask
    node = used[0]
    used[0] += 1
    slots[slot] = node
    nodes[node, TOKEN], nodes[node, PARENT], nodes[node, SLOT] = token, parent, slot
    nodes[node, COUNT] = nodes[node, TOTAL] = 0
    nodes[node, DEPTH] = nodes[parent, DEPTH] + 1
    return node


@compiled
def count_place(trie: tuple, text: np.ndarray, start: int, length: int, border: int) -> None:
    """Count the continuation at `start`: up to `length` tokens, ending before the border."""
    used, nodes, slots = trie
    node = 0
    for at in range(start, min(start + length, len(text))):
        if text[at] == border:
            return
        nodes[node, TOTAL] += 1
        node = _child(used, nodes, slots, node, text[at])
        nodes[node, COUNT] += 1


@compiled
def _score(
    nodes: np.ndarray,
    size: int,
    matched: int,
    confidence: np.ndarray,
    scores: np.ndarray,
    listed: np.ndarray,
) -> int:
    """Score all nodes and list those of at least `MIN_SCORE`; returns how many."""
    scores[0] = 1.0
    count = 0
    for node in range(1, size):
        parent = nodes[node, PARENT]
        trust = confidence[min(matched + nodes[parent, DEPTH], len(confidence) - 1)]
        share = nodes[node, COUNT] / (nodes[parent, TOTAL] + UNSEEN)
        scores[node] = scores[parent] * trust * share
        if scores[node] >= MIN_SCORE:
            listed[count] = node
            count += 1
    return count


@compiled
def _best(
    trie: tuple, matched: int, confidence: np.ndarray, work: tuple, fields: np.ndarray
) -> int:
    """Fill the columns of `fields` with the best nodes, best first; returns how many.

    Their numbers are at the beginning of the work array `listed`.
    """
    used, nodes, _ = trie
    scores, listed, ranks = work
    count = _score(nodes, used[0], matched, confidence, scores, listed)
    found = min(count, fields.shape[1])
    for at in range(found):
        best = at
        for other in range(at + 1, count):
            # Ties go to the node created first, so parents come before their children.
            better = scores[listed[other]] - scores[listed[best]]
            if better > 0 or (better == 0 and listed[other] < listed[best]):
                best = other
        listed[at], listed[best] = listed[best], listed[at]
        node = listed[at]
        parent = nodes[node, PARENT]
        ranks[node] = at
        fields[0, at] = nodes[node, TOKEN]
        fields[1, at] = ranks[parent] if parent > 0 else -1
        fields[2, at] = matched + nodes[parent, DEPTH]
        fields[3, at] = nodes[node, COUNT]
        fields[4, at] = nodes[parent, TOTAL]
        fields[5, at] = NOT_IN_TEXT
    return found


class Continuations:
    """Holds the continuations of `places` places, up to `length` tokens each."""

    def __init__(self, places: int, length: int) -> None:
        capacity = 1 + places * length
        self.length = length
        self.arrays = (
            np.ones(1, dtype=np.int64),  # nodes used
            np.zeros((capacity, 6), dtype=np.int32),
            np.zeros(1 << (2 * capacity - 1).bit_length(), dtype=np.int32),  # 0: free
        )
        self._work = (
            np.empty(capacity, dtype=np.float64),
            np.empty(capacity, dtype=np.int32),
            np.empty(capacity, dtype=np.int32),
        )

    def clear(self) -> None:
        """Remove all places."""
        _clear(*self.arrays)

    def best(self, limit: int, matched: int, confidence: np.ndarray) -> Matches:
        """The `limit` most probable nodes after `matched` tokens of context."""
        fields = np.empty((6, limit), dtype=np.int32)
        trust = np.array(confidence, dtype=np.float64)
        size = _best(self.arrays, matched, trust, self._work, fields)
        scores, listed, _ = self._work
        return Matches(fields, scores[listed[:size]].astype(np.float32))
