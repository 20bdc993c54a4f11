"""What every retriever is: asked how near texts are to a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Nearness:
    """Of each text: its score, higher is nearer, float [texts]; whether it is near enough to be of
    use, bool [texts]. Scores of different retrievers cannot be compared."""

    scores: np.ndarray
    near: np.ndarray

    def ranking(self) -> list[int]:
        """Numbers of all texts, best first: those that are near, then the others."""
        return np.lexsort((-self.scores, ~self.near)).tolist()


class Retriever(Protocol):
    """One signature for all; several threads may ask at once."""

    def nearness(self, question: str, texts: Sequence[str]) -> Nearness:
        """How near each text is to the question."""
