"""The best of many scores, and several rankings as one."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graft.retrieval.fusion import RANK_OFFSET

Ranked = tuple[np.ndarray, np.ndarray]  # numbers of passages and their scores, best first


class Ranker(Protocol):
    """Whoever ranks all passages of a corpus."""

    def rank(self, question: str, k: int) -> Ranked:
        """The best `k` or fewer; none that has nothing to do with the question."""


def best(scores: np.ndarray, k: int, *, above: float) -> Ranked:
    """The `k` highest of those greater than `above`; equal ones in their order."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else above
    found = np.flatnonzero((scores >= least) & (scores > above))
    found = found[np.argsort(-scores[found], kind="stable")[:k]]
    return found, scores[found]


def fused(rankings: Sequence[Ranked], k: int) -> Ranked:
    """By reciprocal rank (see graft.retrieval.fusion)."""
    totals: dict[int, float] = defaultdict(float)
    for numbers, _ in rankings:
        for rank, number in enumerate(numbers.tolist(), 1):
            totals[number] += 1 / (RANK_OFFSET + rank)
    order = sorted(totals, key=lambda number: (-totals[number], number))[:k]
    return np.array(order, np.int64), np.array([totals[number] for number in order])
