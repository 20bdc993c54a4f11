"""How often the next token is a draft head's first, second, ... choice.

The rates are learned per request, recent tokens counting more; a request starts from the rates of
earlier requests. They predict the acceptance of a tree of any shape before it is grown.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from graft.tree.draft_tree import DraftTree

RANKS = 10
# Rates of a fair head, used before anything is measured.
FIRST_RATES = np.array([0.6, 0.12, 0.06, 0.03, 0.02, 0.01, 0.01, 0.005, 0.005, 0.005])
PRIOR_WEIGHT = 6.0  # observations that the starting rates count for
DECAY = 0.97  # weight of an observation one token later
GLOBAL_DECAY = 0.998  # the same over all requests


class Ranks:
    """Rates of one sequence, or of all of them (`before` is None)."""

    def __init__(self, before: "Ranks | None" = None) -> None:
        self._before = before
        self._decay = GLOBAL_DECAY if before is None else DECAY
        self._hits = PRIOR_WEIGHT * (FIRST_RATES if before is None else before.rates)
        self._tries = PRIOR_WEIGHT

    @property
    def rates(self) -> np.ndarray:
        """[RANKS]: the probability that the next token is the choice of each rank."""
        return self._hits / self._tries

    def observe(self, tree: DraftTree, probs: Sequence[float], emitted: Sequence[int]) -> None:
        """Compare a draft with the committed tokens; `probs` are the head's of its nodes."""
        children, node = tree.children, 0
        for token in emitted:
            tried = children[node]
            if not tried:
                return
            ranked = sorted(tried.values(), key=lambda child: -probs[child])[:RANKS]
            node = tried.get(token, -1)
            self._count(ranked.index(node) if node in ranked else None)
            if node < 0:
                return

    def _count(self, rank: int | None) -> None:
        self._hits *= self._decay
        self._tries = self._decay * self._tries + 1
        if rank is not None:
            self._hits[rank] += 1
        if self._before:
            self._before._count(rank)


def expected_levels(rates: np.ndarray, width: int, depth: int) -> Iterator[np.ndarray]:
    """For each of `depth` levels the path probabilities of its nodes, descending, if the `width`
    best nodes of every level get children that are accepted at these rates."""
    beam = np.ones(1)
    for _ in range(depth):
        level = -np.sort(-np.outer(beam, rates).ravel())
        yield level
        beam = level[:width]
