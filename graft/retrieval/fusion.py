"""Several retrievers as one, by reciprocal rank fusion (Cormack, Clarke, Büttcher 2009)."""

from collections.abc import Sequence

import numpy as np

from graft.retrieval.retriever import Nearness, Retriever

RANK_OFFSET = 60  # the paper's: the first ranks of one retriever do not outweigh all others


class Fusion:
    """A text's score is the sum of 1 / (60 + rank) over the retrievers; it is near if one of them
    says so. Texts that a retriever cannot tell apart share the last of their ranks."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self._retrievers = tuple(retrievers)

    def nearness(self, question: str, texts: Sequence[str]) -> Nearness:
        """See Retriever."""
        scores, near = np.zeros(len(texts)), np.zeros(len(texts), bool)
        for retriever in self._retrievers:
            told = retriever.nearness(question, texts)
            scores += 1 / (RANK_OFFSET + _ranks(told.scores))
            near |= told.near
        return Nearness(scores, near)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """From 1, best first."""
    return np.searchsorted(np.sort(-scores), -scores, side="right")
