"""BM25 over passages on disk: an index of bm25s, made once and mapped."""

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
    """Counts words as passages come; four bytes a word are in memory until `finish`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, int] = {}
        self._counted: list[array] = []

    def add(self, texts: Iterable[str]) -> None:
        """More passages."""
        columns = self._columns
        for text in texts:
            found = (columns.setdefault(word, len(columns)) for word in words(text))
            self._counted.append(array("i", found))

    def finish(self) -> None:
        """Write the index."""
        if not self._columns:
            raise InputError("the corpus has no words; its passages are empty")
        index = load_bm25s().BM25(k1=K1, b=B, method="lucene")
        index.index((self._counted, self._columns), show_progress=False)
        index.save(self._folder, show_progress=False)


class LexicalRanker:
    """Ranks by BM25 what has a word of the question."""

    def __init__(self, folder: Path) -> None:
        try:
            self._index = load_bm25s().BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder} is damaged ({type(error).__name__}): build the corpus anew"
            ) from error

    def rank(self, question: str, k: int) -> Ranked:
        """See Ranker."""
        asked = [word for word in question_words(question) if word in self._index.vocab_dict]
        if not asked:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        return best(self._index.get_scores(asked), k, above=0.0)
