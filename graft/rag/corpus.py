"""What can be looked up: passages with ids that stay the same, found by a query.

`Corpus` is all that a session needs to know. `Bm25Corpus` keeps a list of passages in memory;
larger ones that lie on disk answer by the same protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.errors import InputError
from graft.retrieval.bm25 import question_words, words
from graft.retrieval.bm25s_without_jax import load_bm25s

K1, B = 1.2, 0.75  # of Lucene and Elasticsearch, which the papers searched with


@dataclass(frozen=True, slots=True)
class Passage:
    """A text short enough to be read for one fact; `id` is what prompts and caches call it."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found; a higher score is a better match."""

    passage: Passage
    score: float


class Corpus(Protocol):
    """Whatever finds passages."""

    def search(self, query: str, k: int) -> list[Hit]:
        """The best `k` or fewer, best first; none that has nothing in common with the query."""

    def __len__(self) -> int:
        """How many passages there are."""


class Bm25Corpus:
    """Passages in memory, ranked by BM25 over title and text. Equal scores: the earlier first."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        if not passages:
            raise InputError("the corpus has no passages; name files that hold some")
        self.passages = list(passages)
        refuse_repeated(self.passages)
        columns: dict[str, int] = {}
        counted = [
            [columns.setdefault(word, len(columns)) for word in words(f"{each.title} {each.text}")]
            for each in self.passages
        ]
        if not columns:
            raise InputError("the corpus has no words; its passages are empty")
        self._columns = columns
        self._index = load_bm25s().BM25(k1=K1, b=B, method="lucene")
        self._index.index((counted, columns), show_progress=False)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Corpus."""
        asked = [word for word in question_words(query) if word in self._columns]
        if not asked:
            return []
        scores = self._index.get_scores(asked)
        best = np.argsort(-scores, kind="stable")[:k]
        return [Hit(self.passages[i], float(scores[i])) for i in best.tolist() if scores[i] > 0]


def refuse_repeated(passages: Sequence[Passage]) -> None:
    """An id that two passages have would mix them up."""
    seen: set[str] = set()
    for passage in passages:
        if passage.id in seen:
            raise InputError(f"two passages have the id {passage.id!r}; ids must differ")
        seen.add(passage.id)
