"""The draft: a tree of draft tokens whose node 0 is the root, the last generated token.

Nodes are in level order, parents before children, and siblings have distinct tokens. So depths
never fall along the array, and the nodes that a node attends to follow from `parents` alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from torch import Tensor

from graft.tree.relations import ancestors, depths


@dataclass(eq=False)  # a frozen one takes three times as long to make
class DraftTree:
    """Immutable by convention. `scores` estimate the probability that a node's whole path is
    accepted; the root's is 1.

    `sources` index into `source_names`, the drafters. `probs` are the drafter's distributions that
    a node's children were sampled from; only sampled chains have them, for rules with q. `places`
    are positions of copied tokens in a sequence's texts (`draft/copies/texts.py`), -1 for others.
    """

    tokens: np.ndarray  # [N] int64
    parents: np.ndarray  # [N] int32, parents[0] = -1
    scores: np.ndarray  # [N] float32
    sources: np.ndarray  # [N] int16
    source_names: tuple[str, ...] = ("",)
    probs: Tensor | None = None  # [N, V]
    places: np.ndarray | None = None  # [N] int32; None: no token is copied

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> np.ndarray:
        """[N] int64: steps from the root."""
        return depths(self.parents)

    def ancestors(self) -> np.ndarray:
        """[N, N] uint8: row i is 1 at i and at its ancestors, the nodes i may attend to."""
        return ancestors(self.parents)

    @cached_property
    def children(self) -> list[dict[int, int]]:
        """For every node its children, token -> node; do not change them."""
        if len(self) == 1:
            return [{}]
        known: list[dict[int, int]] = [{} for _ in range(len(self))]
        pairs = zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        for i, (parent, token) in enumerate(pairs):
            if i:
                known[parent][token] = i
        return known

    def paths(self) -> list[list[int]]:
        """For every node the tokens from below the root down to it."""
        paths: list[list[int]] = [[]]
        for parent, token in zip(self.parents[1:].tolist(), self.tokens[1:].tolist(), strict=True):
            paths.append([*paths[parent], token])
        return paths

    def source(self, node: int) -> str:
        """The drafter that proposed a node."""
        return self.source_names[self.sources[node]]

    def place(self, node: int) -> int:
        """The place of a copied node, -1 for others."""
        return -1 if self.places is None else int(self.places[node])

    def all_places(self) -> list[int]:
        """The place of every node."""
        return [-1] * len(self) if self.places is None else self.places.tolist()


def with_depths(tree: DraftTree, known: np.ndarray) -> DraftTree:
    """The tree with its depths, so that they are not computed again."""
    tree.__dict__["depths"] = known
    return tree


_NO_PARENT = np.array([-1], np.int32)
_CERTAIN = np.ones(1, np.float32)
_NO_SOURCE = np.zeros(1, np.int16)


@lru_cache(maxsize=1 << 14)
def root_only(token: int) -> DraftTree:
    """A tree without draft tokens: plain decoding."""
    return DraftTree(np.array([token]), _NO_PARENT, _CERTAIN, _NO_SOURCE)


def chain(tokens: Sequence[int], source: str = "", probs: Tensor | None = None) -> DraftTree:
    """A tree of width one; tokens[0] is the root."""
    count = len(tokens)
    return DraftTree(
        np.array(tokens, np.int64),
        np.arange(-1, count - 1, dtype=np.int32),
        np.ones(count, np.float32),
        np.zeros(count, np.int16),
        (source,),
        probs,
    )


def in_level_order(
    tokens: np.ndarray,
    parents: np.ndarray,
    scores: np.ndarray,
    sources: np.ndarray,
    source_names: tuple[str, ...],
    places: np.ndarray | None = None,
) -> DraftTree:
    """A tree from nodes in any order with parents first; node 0 is the root."""
    level = depths(parents)
    if (level[1:] < level[:-1]).any():
        order = np.argsort(level, kind="stable")
        level = level[order]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        tokens, parents, scores, sources = (
            each[order] for each in (tokens, parents, scores, sources)
        )
        parents[1:] = place[parents[1:]]
        places = None if places is None else places[order]
    tree = DraftTree(
        tokens.astype(np.int64),
        parents.astype(np.int32),
        scores.astype(np.float32),
        sources.astype(np.int16),
        source_names,
        places=None if places is None else places.astype(np.int32),
    )
    return with_depths(tree, level)


def from_paths(root: int, paths: Iterable[Sequence[int]], source: str = "") -> DraftTree:
    """The trie of several continuations of the root."""
    tokens, parents = [root], [-1]
    known: dict[tuple[int, int], int] = {}
    for path in paths:
        node = 0
        for token in path:
            following = known.get((node, int(token)))
            if following is None:
                following = known[node, int(token)] = len(tokens)
                tokens.append(int(token))
                parents.append(node)
            node = following
    count = len(tokens)
    return in_level_order(
        np.array(tokens), np.array(parents), np.ones(count), np.zeros(count), (source,)
    )
