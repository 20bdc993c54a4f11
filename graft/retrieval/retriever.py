"""The protocols of retrievers and encoders, and what they share: ranks, windows of long texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Ranked = tuple[np.ndarray, np.ndarray]  # numbers of texts and their scores, best first


def best_above(scores: np.ndarray, k: int, minimum: float) -> Ranked:
    """The `k` highest scores greater than `minimum`; equal scores keep their order."""
    lowest = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else minimum
    found = np.flatnonzero((scores >= lowest) & (scores > minimum))
    found = found[np.argsort(-scores[found], kind="stable")[:k]]
    return found, scores[found]


@dataclass(frozen=True, slots=True)
class Relevance:
    """Scores (higher is better) and whether each text is relevant at all. Scores of different
    retrievers cannot be compared."""

    scores: np.ndarray  # float [texts]
    relevant: np.ndarray  # bool [texts]

    def ranking(self) -> list[int]:
        """Numbers of all texts, best first: the relevant ones, then the others."""
        return np.lexsort((-self.scores, ~self.relevant)).tolist()


class Retriever(Protocol):
    """Scores texts; several threads may share one."""

    def relevance(self, question: str, texts: Sequence[str]) -> Relevance:
        """The relevance of each text to the question."""


class Encoder(Retriever, Protocol):
    """Computes unit vectors; a passage with a cosine of `min_cosine` or more is relevant."""

    min_cosine: float

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, size]."""

    def encode_question(self, question: str) -> np.ndarray:
        """float32 [size]."""


def edges(length: int, max_length: int) -> list[tuple[int, int]]:
    """Start and end of windows of nearly equal length, at most `max_length`; one if empty."""
    count = max(1, -(-length // max_length))
    places = [length * number // count for number in range(count + 1)]
    return list(zip(places, places[1:], strict=False))


def best(scores: np.ndarray, counts: list[int]) -> np.ndarray:
    """The maximum of each text's window scores, float [texts]; `counts` are windows per text."""
    if not counts:
        return np.zeros(0, np.float32)
    return np.maximum.reduceat(scores, np.cumsum([0, *counts[:-1]]))
