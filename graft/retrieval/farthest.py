"""The least relevant texts, to measure a drafter when retrieval fails (RAPID, table 3).

The paper uses the text of another question. Here it is the prompt's own chunks in reverse order of
relevance, of the same length.
"""

from collections.abc import Sequence

import numpy as np

from graft.retrieval.bm25 import Bm25
from graft.retrieval.retriever import Relevance


class Farthest:
    """BM25 reversed: the texts with the least in common with the question come first."""

    def __init__(self) -> None:
        self._bm25 = Bm25()

    def relevance(self, question: str, texts: Sequence[str]) -> Relevance:
        """See Retriever. All texts count as relevant: only the budget limits the selection."""
        found = self._bm25.relevance(question, texts)
        return Relevance(-found.scores, np.ones(len(found.scores), bool))
