"""Top-k selection and rank fusion."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graft.retrieval.fusion import RANK_OFFSET

Ranked = tuple[np.ndarray, np.ndarray]  # numbers of passages and their scores, best first


class Ranker(Protocol):
    """Ranks all passages of a corpus."""

    def rank(self, question: str, k: int) -> Ranked:
        """At most `k` passages, best first; only relevant ones."""


def best(scores: np.ndarray, k: int, *, above: float) -> Ranked:
    """The `k` highest scores greater than `above`; equal scores keep their order."""
    lowest = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else above
    found = np.flatnonzero((scores >= lowest) & (scores > above))
    found = found[np.argsort(-scores[found], kind="stable")[:k]]
    return found, scores[found]


def fused(rankings: Sequence[Ranked], k: int) -> Ranked:
    """The rankings fused by reciprocal rank (see graft.retrieval.fusion)."""
    totals: dict[int, float] = defaultdict(float)
    for numbers, _ in rankings:
        for rank, number in enumerate(numbers.tolist(), 1):
            totals[number] += 1 / (RANK_OFFSET + rank)
    order = sorted(totals, key=lambda number: (-totals[number], number))[:k]
    return np.array(order, np.int64), np.array([totals[number] for number in order])
