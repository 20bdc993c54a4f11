"""Builds a draft tree from an index's matches, in one compiled pass.

It runs between two steps of a GPU, where microseconds of the host count.
"""

import numpy as np
from numba import njit

from graft.draft.copies.texts import NOWHERE, SOURCES
from graft.match.matches import Matches
from graft.tree.draft_tree import DraftTree, with_depths

_STORE, _POOL = SOURCES.index("store"), SOURCES.index("pool")


def tree_of(
    root: int, matches: Matches, count: int, starts: np.ndarray, kinds: np.ndarray
) -> DraftTree:
    """The `count` best continuations below the root. `starts` are the places at which the indexed
    texts begin, `kinds` their numbers in SOURCES."""
    tokens, parents, scores, sources, places, depths = _columns(
        root, matches.fields, matches.scores, count, starts, kinds
    )
    tree = DraftTree(tokens, parents, scores, sources, SOURCES, places=places)
    return with_depths(tree, depths)


def warm_up() -> None:
    """Compile it, or load it from the cache, before the first request."""
    empty = Matches(np.empty((6, 1), np.int32), np.empty(0, np.float32))
    tree_of(0, empty, 0, np.zeros(1, np.int64), np.zeros(1, np.int16))


@njit(cache=True, nogil=True)
def _columns(root, fields, scores, count, starts, kinds):  # noqa: ANN001, ANN202  (numba)
    """The columns of the tree in level order; within a level in the order of the matches."""
    nodes = count + 1
    level = np.zeros(nodes, np.int64)
    following = np.zeros(nodes + 1, np.int64)  # nodes of each level, then its next free number
    following[0] = 1
    for i in range(count):
        level[i + 1] = level[fields[1, i] + 1] + 1
        following[level[i + 1]] += 1
    first = 0
    for depth in range(nodes + 1):
        following[depth], first = first, first + following[depth]
    tokens, parents = np.empty(nodes, np.int64), np.empty(nodes, np.int32)
    ordered, sources = np.empty(nodes, np.float32), np.empty(nodes, np.int16)
    places, depths = np.empty(nodes, np.int32), np.empty(nodes, np.int64)
    numbers = np.empty(nodes, np.int64)  # each match's node number
    for i in range(nodes):
        node = numbers[i] = following[level[i]]
        following[level[i]] += 1
        depths[node] = level[i]
        if i == 0:
            tokens[0], parents[0], ordered[0], sources[0] = root, -1, 1.0, 0
            places[0] = NOWHERE
            continue
        place = fields[5, i - 1]
        tokens[node], parents[node] = fields[0, i - 1], numbers[fields[1, i - 1] + 1]
        ordered[node], places[node] = scores[i - 1], place
        sources[node] = source_at(place, starts, kinds)
    return tokens, parents, ordered, sources, places, depths


@njit(cache=True, nogil=True)
def source_at(place, starts, kinds):  # noqa: ANN001, ANN201  (numba)
    """The kind of text at a place; a token without a place is from a datastore or a pool."""
    if place <= NOWHERE:
        return _STORE if place == NOWHERE else _POOL
    return kinds[np.searchsorted(starts, place, side="right") - 1]
