"""BM25 over passages on disk: a memory-mapped index of bm25s."""

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.rag.corpora.ranking import Ranked, best
from graft.rag.corpus import K1, B
from graft.retrieval.bm25 import question_words, words
from graft.retrieval.bm25s_without_jax import load_bm25s


class LexicalWriter:
    """Collects the words of passages; needs four bytes of memory per word until `finish`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, int] = {}
        self._words: list[array] = []

    def add(self, texts: Iterable[str]) -> None:
        """Add passages."""
        columns = self._columns
        for text in texts:
            found = (columns.setdefault(word, len(columns)) for word in words(text))
            self._words.append(array("i", found))

    def finish(self) -> None:
        """Write the index."""
        if not self._columns:
            raise InputError("the corpus has no words; its passages are empty")
        index = load_bm25s().BM25(k1=K1, b=B, method="lucene")
        index.index((self._words, self._columns), show_progress=False)
        index.save(self._folder, show_progress=False)


class LexicalRanker:
    """Ranks passages with a word of the question by BM25."""

    def __init__(self, folder: Path) -> None:
        try:
            self._index = load_bm25s().BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder} is damaged ({type(error).__name__}): build the corpus again"
            ) from error

    def rank(self, question: str, k: int) -> Ranked:
        """See Ranker."""
        query_words = [word for word in question_words(question) if word in self._index.vocab_dict]
        if not query_words:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        return best(self._index.get_scores(query_words), k, above=0.0)
