"""Several retrievers fused by reciprocal rank (Cormack, Clarke, Büttcher 2009)."""

from collections.abc import Sequence

import numpy as np

from graft.retrieval.retriever import Relevance, Retriever

RANK_OFFSET = 60  # the paper's: the first ranks of one retriever do not outweigh all others


class Fusion:
    """A text's score is the sum of 1 / (60 + rank) over the retrievers; it is relevant if one of
    them finds it relevant. Texts with equal scores share the last of their ranks."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self._retrievers = tuple(retrievers)

    def relevance(self, question: str, texts: Sequence[str]) -> Relevance:
        """See Retriever."""
        scores, relevant = np.zeros(len(texts)), np.zeros(len(texts), bool)
        for retriever in self._retrievers:
            found = retriever.relevance(question, texts)
            scores += 1 / (RANK_OFFSET + _ranks(found.scores))
            relevant |= found.relevant
        return Relevance(scores, relevant)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """From 1, best first."""
    return np.searchsorted(np.sort(-scores), -scores, side="right")
