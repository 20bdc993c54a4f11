"""Retrievers by name.

`bm25` needs no extra package; `static` (word vectors) and `dense` (all-MiniLM-L6-v2; `dense:NAME`
any other sentence encoder or folder) need one each. Names joined by + are fused by reciprocal rank
(Cormack, Clarke, Büttcher 2009); `hybrid` is bm25+static. On a GPU bm25+dense finds more; on a CPU
an encoder takes as long as a small model's prefill.
"""

from collections.abc import Sequence

import numpy as np

from graft.errors import InputError
from graft.retrieval.bm25 import Bm25
from graft.retrieval.retriever import Encoder, Relevance, Retriever

BM25 = "bm25"
CHOICES = "bm25, static, dense, dense:NAME or hybrid, or join several by +"
RANK_OFFSET = 60  # of the fusion; the first ranks of one retriever do not outweigh all others
ALIASES = {"bm25s": BM25, "hybrid": f"{BM25}+static"}


def retriever(name: str = BM25) -> Retriever:
    """The retriever of that name, loaded; InputError for an unknown name."""
    members: list[Retriever] = [
        Bm25() if part == BM25 else find_encoder(part) for part in check_retriever(name)
    ]
    return members[0] if len(members) == 1 else Fusion(members)


def check_retriever(name: str, kind: str = "retriever", choices: str = CHOICES) -> tuple[str, ...]:
    """The single retrievers of a name; InputError if one is unknown. Loads nothing."""
    parts = "+".join(ALIASES.get(part, part) for part in name.split("+")).split("+")
    for part in parts:
        encoder, _, model = part.partition(":")
        if part not in (BM25, "static", "dense") and not (encoder == "dense" and model):
            raise InputError(f"unknown {kind} {part!r}; choose {choices}")
    return tuple(parts)


def find_encoder(name: str) -> Encoder:
    """Load `static` (word vectors), `dense` (all-MiniLM-L6-v2) or `dense:NAME`."""
    if name == "static":
        from graft.retrieval.static import StaticEmbeddings

        return StaticEmbeddings()
    from graft.retrieval.dense import MINILM, DenseEmbeddings

    return DenseEmbeddings(name.partition(":")[2] or MINILM)


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
            ranks = np.searchsorted(np.sort(-found.scores), -found.scores, side="right")  # from 1
            scores += 1 / (RANK_OFFSET + ranks)
            relevant |= found.relevant
        return Relevance(scores, relevant)
