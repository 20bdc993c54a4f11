"""Vectors of a corpus on disk, searched exhaustively, and rank fusion.

The vectors are memory-mapped. A million of 256 numbers are a gigabyte, read for every question; use
Milvus for more.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graft.retrieval.fusion import RANK_OFFSET
from graft.retrieval.retriever import Encoder, Ranked, best_above

BLOCK = 1 << 16  # vectors compared at a time


def fused(rankings: Sequence[Ranked], k: int) -> Ranked:
    """The rankings fused by reciprocal rank (see graft.retrieval.fusion)."""
    totals: dict[int, float] = defaultdict(float)
    for numbers, _ in rankings:
        for rank, number in enumerate(numbers.tolist(), 1):
            totals[number] += 1 / (RANK_OFFSET + rank)
    order = sorted(totals, key=lambda number: (-totals[number], number))[:k]
    return np.array(order, np.int64), np.array([totals[number] for number in order])


class VectorIndex:
    """Ranks passages with the encoder's minimum cosine or more."""

    def __init__(self, file: Path, size: int, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors = np.memmap(file, "<f4", "r").reshape(-1, size)

    def rank(self, question: str, k: int) -> Ranked:
        """At most `k` passages, best first."""
        query = self._encoder.encode_question(question)
        scores = np.empty(len(self._vectors), np.float32)
        for first in range(0, len(scores), BLOCK):
            block = slice(first, first + BLOCK)
            np.matmul(self._vectors[block], query, out=scores[block])
        lowest = np.float32(self._encoder.min_cosine)
        return best_above(scores, k, np.nextafter(lowest, np.float32(-2)))
