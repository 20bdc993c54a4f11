"""Parts of a draft tree: its best nodes, its first levels, some of its branches."""

import heapq
from collections.abc import Collection, Iterable

import numpy as np

from graft.tree.draft_tree import DraftTree
from graft.tree.relations import strongest_nodes


def best_first(tree: DraftTree) -> list[int]:
    """All nodes: the root, then always the best child of a node in the list (ties: lower number).

    Any prefix of this order contains all parents of its nodes, whatever the scores are.
    """
    children = tree.children
    order, frontier = [], [(-np.inf, 0)]
    while frontier:
        _, node = heapq.heappop(frontier)
        order.append(node)
        for child in children[node].values():
            heapq.heappush(frontier, (-float(tree.scores[child]), child))
    return order


def keep(tree: DraftTree, nodes: list[int]) -> DraftTree:
    """The tree of these nodes only; they must include the root and all their parents."""
    return keep_ascending(tree, np.array(sorted(nodes)))


def keep_ascending(tree: DraftTree, chosen: np.ndarray) -> DraftTree:
    """See `keep`; nodes in ascending order."""
    place = np.full(len(tree) + 1, -1, np.int32)  # the root's parent -1 maps to the last entry
    place[chosen] = np.arange(len(chosen))
    return DraftTree(
        tree.tokens[chosen],
        place[tree.parents[chosen]],
        tree.scores[chosen],
        tree.sources[chosen],
        tree.source_names,
        None if tree.probs is None else tree.probs[chosen],
        None if tree.places is None else tree.places[chosen],
    )


def strongest(tree: DraftTree, count: int) -> DraftTree:
    """The root and the `count` nodes with the best scores (ties: lower number), without those of
    score 0, for trees in which no score is above its parent's."""
    if len(tree) <= count + 1:
        return tree
    return keep_ascending(tree, strongest_nodes(tree.scores, count))


def starting_with(tree: DraftTree, tokens: Iterable[int]) -> DraftTree:
    """The branches whose first token is one of these (RASD's pruning)."""
    wanted = set(tokens)
    kept = [0]
    inside = [True] + [False] * (len(tree) - 1)
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        inside[node] = inside[parent] if parent else int(tree.tokens[node]) in wanted
        if inside[node]:
            kept.append(node)
    return keep(tree, kept)


def without(tree: DraftTree, tokens: Collection[int]) -> DraftTree:
    """The tree without the nodes of these tokens and all below them."""
    kept = [0]
    for node in range(1, len(tree)):
        if int(tree.tokens[node]) not in tokens and int(tree.parents[node]) in kept:
            kept.append(node)
    return tree if len(kept) == len(tree) else keep(tree, kept)


def shallow(tree: DraftTree, depth: int) -> DraftTree:
    """The nodes at most `depth` below the root."""
    if len(tree) == 1 or tree.depths[-1] <= depth:  # level order: depths never fall
        return tree
    return keep(tree, list(range(int(np.searchsorted(tree.depths, depth, side="right")))))


def cut(tree: DraftTree, budget: int) -> DraftTree:
    """The root and at most `budget` nodes, best first."""
    if len(tree) <= budget + 1:
        return tree
    return keep(tree, best_first(tree)[: budget + 1])
