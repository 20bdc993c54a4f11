"""What an index found as a tree, in one compiled pass: between two steps of a GPU a microsecond of
the host counts, and every step asks for it."""

import numpy as np
from numba import njit

from graft.draft.copies.texts import NOWHERE, SOURCES
from graft.match.matches import Matches
from graft.tree.draft_tree import DraftTree, with_depths

_STORE = SOURCES.index("store")


def hung(
    root: int, matches: Matches, kept: int, starts: np.ndarray, kinds: np.ndarray
) -> DraftTree:
    """The first (and best) `kept` continuations under the root. `starts` are the places at which
    the texts begin that were copied from, `kinds` their numbers in SOURCES."""
    tokens, parents, scores, sources, places, depths = _hung(
        root, matches.fields, matches.scores, kept, starts, kinds
    )
    tree = DraftTree(tokens, parents, scores, sources, SOURCES, places=places)
    return with_depths(tree, depths)


def warm_up() -> None:
    """Compile it, or load it from the cache, so that the first request need not."""
    nothing = Matches(np.empty((6, 1), np.int32), np.empty(0, np.float32))
    hung(0, nothing, 0, np.zeros(1, np.int64), np.zeros(1, np.int16))


@njit(cache=True, nogil=True)
def _hung(root, fields, scores, kept, starts, kinds):  # noqa: ANN001, ANN202  (numba)
    """The columns of the tree, level by level; within one in the order in which they were found."""
    count = kept + 1
    level = np.zeros(count, np.int64)
    sizes = np.zeros(count + 1, np.int64)  # nodes of each level, then where the next one is put
    sizes[0] = 1
    for i in range(kept):
        level[i + 1] = level[fields[1, i] + 1] + 1
        sizes[level[i + 1]] += 1
    first = 0
    for depth in range(count + 1):
        sizes[depth], first = first, first + sizes[depth]
    tokens, parents = np.empty(count, np.int64), np.empty(count, np.int32)
    ordered, sources = np.empty(count, np.float32), np.empty(count, np.int16)
    places, depths = np.empty(count, np.int32), np.empty(count, np.int64)
    put = np.empty(count, np.int64)  # where each node stands now
    for i in range(count):
        node = put[i] = sizes[level[i]]
        sizes[level[i]] += 1
        depths[node] = level[i]
        if i == 0:
            tokens[0], parents[0], ordered[0], sources[0] = root, -1, 1.0, 0
            places[0] = NOWHERE
            continue
        place = fields[5, i - 1]
        tokens[node], parents[node] = fields[0, i - 1], put[fields[1, i - 1] + 1]
        ordered[node], places[node] = scores[i - 1], place
        sources[node] = source_at(place, starts, kinds)
    return tokens, parents, ordered, sources, places, depths


@njit(cache=True, nogil=True)
def source_at(place, starts, kinds):  # noqa: ANN001, ANN201  (numba)
    """What stands at a place of the indexed text; what stands in none is from a datastore."""
    if place <= NOWHERE:
        return _STORE
    return kinds[np.searchsorted(starts, place, side="right") - 1]
