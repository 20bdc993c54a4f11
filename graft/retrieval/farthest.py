"""The texts that help least, for trying what a drafter does when retrieval fails (RAPID, table 3).

The paper shows every drafter the text of another question. Here it is the prompt's own chunks in
the reverse of their order: the drafter reads as much as ever, and nothing to the point.
"""

from collections.abc import Sequence

import numpy as np

from graft.retrieval.bm25 import Bm25
from graft.retrieval.retriever import Nearness


class Farthest:
    """BM25 turned round: what shares least with the question comes first."""

    def __init__(self) -> None:
        self._nearest = Bm25()

    def nearness(self, question: str, texts: Sequence[str]) -> Nearness:
        """See Retriever. All are taken to be near: the budget alone limits what is read."""
        found = self._nearest.nearness(question, texts)
        return Nearness(-found.scores, np.ones(len(found.scores), bool))
