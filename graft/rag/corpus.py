"""Corpora: passages with stable ids, found by a query.

`Corpus` is the protocol that a session uses. `Bm25Corpus` has its passages in memory; corpora/ has
those on disk.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from graft.errors import InputError
from graft.retrieval.bm25 import Bm25Index


@dataclass(frozen=True, slots=True)
class Passage:
    """A short text; prompts and caches use its `id`. `source` is its file, with the page if any."""

    id: str
    text: str
    title: str = ""
    source: str = ""


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
        self._index = Bm25Index.of(f"{each.title} {each.text}" for each in self.passages)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Corpus."""
        numbers, scores = self._index.rank(query, k)
        ranked = zip(numbers.tolist(), scores.tolist(), strict=True)
        return [Hit(self.passages[number], score) for number, score in ranked]
