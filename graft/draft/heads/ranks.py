"""How good a draft head's ranking is: how often the next token is its first, second, ... choice.

Learned per request, recent tokens counting more; a request begins with what the requests before it
have seen. From these rates follows what a tree of some shape would promise before it is grown.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from graft.tree.draft_tree import DraftTree

RANKS = 10
# A fair head's rates, before anything is known of this one.
FIRST_RATES = np.array([0.6, 0.12, 0.06, 0.03, 0.02, 0.01, 0.01, 0.005, 0.005, 0.005])
PRIOR_WEIGHT = 6.0  # observations that what was known before is worth
DECAY = 0.97  # weight of an observation one token later
MEMORY = 0.998  # the same over all requests


class Ranks:
    """Rates of one sequence, or of all of them (`before` is None)."""

    def __init__(self, before: "Ranks | None" = None) -> None:
        self._before = before
        self._fade = MEMORY if before is None else DECAY
        self._hits = PRIOR_WEIGHT * (FIRST_RATES if before is None else before.rates)
        self._tries = PRIOR_WEIGHT

    @property
    def rates(self) -> np.ndarray:
        """[RANKS]: the probability that the next token is the choice of each rank."""
        return self._hits / self._tries

    def observe(self, tree: DraftTree, shares: Sequence[float], emitted: Sequence[int]) -> None:
        """Hold a draft against the tokens that came; `shares` are the head's of its nodes."""
        children, node = tree.children, 0
        for token in emitted:
            tried = children[node]
            if not tried:
                return
            ranked = sorted(tried.values(), key=lambda child: -shares[child])[:RANKS]
            node = tried.get(token, -1)
            self._count(ranked.index(node) if node in ranked else None)
            if node < 0:
                return

    def _count(self, rank: int | None) -> None:
        self._hits *= self._fade
        self._tries = self._fade * self._tries + 1
        if rank is not None:
            self._hits[rank] += 1
        if self._before:
            self._before._count(rank)


def expected_levels(rates: np.ndarray, width: int, depth: int) -> Iterator[np.ndarray]:
    """For each of `depth` levels what its nodes promise (path probabilities, falling), if the
    `width` best nodes of every level get children that come true at these rates."""
    beam = np.ones(1)
    for _ in range(depth):
        level = -np.sort(-np.outer(beam, rates).ravel())
        yield level
        beam = level[:width]
