"""Which passages of long documents help to answer a question."""

from graft.retrieval.bm25 import scores
from graft.retrieval.passage import Passage, split
from graft.retrieval.select import fill, ranking

__all__ = ["Passage", "fill", "ranking", "scores", "split"]
