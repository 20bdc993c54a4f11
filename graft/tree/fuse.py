"""Merging two draft trees under one root; common nodes are kept once."""

import numpy as np
from numba import njit

from graft.tree.draft_tree import DraftTree, in_level_order

BOTH = "both"  # the source of nodes that several drafters proposed
Nodes = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def union(first: DraftTree, second: DraftTree, at: int = 0) -> DraftTree:
    """A tree with every path of both; the root of the second is node `at` of the first.

    A common node gets the higher score. Its source is `BOTH` if two drafters proposed it, or the
    only named one. Places of copied tokens are kept.
    """
    if first.tokens[at] != second.tokens[0]:
        raise ValueError("trees with different roots cannot be merged")
    if len(second) == 1:
        return first
    if len(first) == 1:
        return second
    names = list(dict.fromkeys((*first.source_names, *second.source_names)))
    if BOTH not in names and len(names) - names.count("") > 1:
        names.append(BOTH)
    unnamed, both = (names.index(each) if each in names else -1 for each in ("", BOTH))
    trees = _nodes(first, names), _nodes(second, names)
    tokens, parents, scores, sources, places = _merge(*trees, at, unnamed, both)
    copied = first.places is not None or second.places is not None
    kept = places if copied else None
    return in_level_order(tokens, parents, scores, sources, tuple(names), kept)


def warm_up() -> None:
    """Compile the kernel, or load it from numba's cache."""
    pair = np.array([-1, 0], np.int32)
    tree = DraftTree(np.zeros(2, np.int64), pair, np.ones(2, np.float32), np.zeros(2, np.int16))
    union(tree, tree)


def _nodes(tree: DraftTree, names: list[str]) -> Nodes:
    """Tokens, parents, scores, sources by `names`, places: always of the same types, because the
    kernel is compiled for each combination of them."""
    numbers = np.array([names.index(name) for name in tree.source_names], np.int16)
    places = np.full(len(tree), -1, np.int32) if tree.places is None else tree.places
    return (
        np.ascontiguousarray(tree.tokens, np.int64),
        np.ascontiguousarray(tree.parents, np.int32),
        np.ascontiguousarray(tree.scores, np.float32),
        numbers[tree.sources],
        np.ascontiguousarray(places, np.int32),
    )


@njit(cache=True)
def _merge(first, second, at, unnamed, both):  # noqa: ANN001, ANN202  (numba)
    """The nodes of the merged tree, those of the first and then new ones."""
    count, most = len(first[0]), len(first[0]) + len(second[0]) - 1
    tokens, parents = np.empty(most, np.int64), np.empty(most, np.int32)
    scores, sources = np.empty(most, np.float32), np.empty(most, np.int16)
    places = np.empty(most, np.int32)
    tokens[:count], parents[:count], scores[:count] = first[0], first[1], first[2]
    sources[:count], places[:count] = first[3], first[4]
    target = np.empty(len(second[0]), np.int64)
    target[0] = at
    for i in range(1, len(second[0])):
        parent, token = target[second[1][i]], second[0][i]
        score, source = first[2][at] * second[2][i], second[3][i]
        node = parent + 1
        while node < count and (parents[node] != parent or tokens[node] != token):
            node += 1
        target[i] = node
        if node == count:
            tokens[node], parents[node], scores[node] = token, parent, score
            sources[node], places[node] = source, second[4][i]
            count += 1
            continue
        scores[node] = max(scores[node], score)
        places[node] = max(places[node], second[4][i])
        if sources[node] == unnamed:
            sources[node] = source
        elif source != unnamed and source != sources[node]:  # noqa: PLR1714  (numba)
            sources[node] = both
    return tokens[:count], parents[:count], scores[:count], sources[:count], places[:count]
