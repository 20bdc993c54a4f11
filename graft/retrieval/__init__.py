"""Retrieval of passages that are relevant to a question."""

from graft.retrieval.bm25 import scores
from graft.retrieval.budget import capped, rapid
from graft.retrieval.named import retriever
from graft.retrieval.passage import Passage, split
from graft.retrieval.retriever import Relevance, Retriever
from graft.retrieval.select import fill, ranking
from graft.retrieval.shorten import Shortened, Shortener

__all__ = [
    "Relevance",
    "Passage",
    "Retriever",
    "Shortened",
    "Shortener",
    "capped",
    "fill",
    "ranking",
    "rapid",
    "retriever",
    "scores",
    "split",
]
