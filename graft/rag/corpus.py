"""Corpora: passages with stable ids, found by a query.

`Corpus` is the protocol that a session uses. `Bm25Corpus` has its passages in memory; corpora/ has
those on disk.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.errors import InputError
from graft.retrieval.bm25 import question_words, words
from graft.retrieval.bm25s_without_jax import load_bm25s

K1, B = 1.2, 0.75  # of Lucene and Elasticsearch, as in the papers


@dataclass(frozen=True, slots=True)
class Passage:
    """A short text; prompts and caches use its `id`."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage; a higher score is a better match."""

    passage: Passage
    score: float


class Corpus(Protocol):
    """Searches passages."""

    def search(self, query: str, k: int) -> list[Hit]:
        """At most `k` passages, best first; only those that match the query."""

    def __len__(self) -> int:
        """The number of passages."""


class Bm25Corpus:
    """Passages in memory, ranked by BM25 over title and text; equal scores keep their order."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        if not passages:
            raise InputError("the corpus has no passages; name files that hold some")
        self.passages = list(passages)
        name, count = Counter(passage.id for passage in self.passages).most_common(1)[0]
        if count > 1:
            raise InputError(f"two passages have the id {name!r}; ids must differ")
        columns: dict[str, int] = {}
        counts = [
            [columns.setdefault(word, len(columns)) for word in words(f"{each.title} {each.text}")]
            for each in self.passages
        ]
        if not columns:
            raise InputError("the corpus has no words; its passages are empty")
        self._columns = columns
        self._index = load_bm25s().BM25(k1=K1, b=B, method="lucene")
        self._index.index((counts, columns), show_progress=False)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Corpus."""
        query_words = [word for word in question_words(query) if word in self._columns]
        if not query_words:
            return []
        scores = self._index.get_scores(query_words)
        best = np.argsort(-scores, kind="stable")[:k]
        return [Hit(self.passages[i], float(scores[i])) for i in best.tolist() if scores[i] > 0]
