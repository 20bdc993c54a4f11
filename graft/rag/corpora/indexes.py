"""The indexes of a corpus on disk: BM25 by bm25s, vectors searched exhaustively; rank fusion.

Both are memory-mapped. A million vectors of 256 numbers are a gigabyte, read for every question;
use Milvus for more.
"""

import shutil
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.rag.corpus import K1, B
from graft.retrieval.bm25 import question_words, words
from graft.retrieval.bm25s_without_jax import load_bm25s
from graft.retrieval.fusion import RANK_OFFSET
from graft.retrieval.retriever import Encoder

BLOCK = 1 << 16  # vectors compared at a time
Ranked = tuple[np.ndarray, np.ndarray]  # numbers of passages and their scores, best first


def best(scores: np.ndarray, k: int, *, above: float) -> Ranked:
    """The `k` highest scores greater than `above`; equal scores keep their order."""
    lowest = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else above
    found = np.flatnonzero((scores >= lowest) & (scores > above))
    found = found[np.argsort(-scores[found], kind="stable")[:k]]
    return found, scores[found]


def fused(rankings: Sequence[Ranked], k: int) -> Ranked:
    """The rankings fused by reciprocal rank (see graft.retrieval.fusion)."""
    totals: dict[int, float] = defaultdict(float)
    for numbers, _ in rankings:
        for rank, number in enumerate(numbers.tolist(), 1):
            totals[number] += 1 / (RANK_OFFSET + rank)
    order = sorted(totals, key=lambda number: (-totals[number], number))[:k]
    return np.array(order, np.int64), np.array([totals[number] for number in order])


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
    """Ranks passages by BM25; those without a word of the question are left out."""

    def __init__(self, folder: Path) -> None:
        try:
            self._index = load_bm25s().BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder} is damaged ({type(error).__name__}): build the corpus again"
            ) from error

    def rank(self, question: str, k: int) -> Ranked:
        """At most `k` passages, best first."""
        query_words = [word for word in question_words(question) if word in self._index.vocab_dict]
        if not query_words:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        return best(self._index.get_scores(query_words), k, above=0.0)


class VectorWriter:
    """Appends vectors to a file, after those of an `earlier` file if given."""

    def __init__(self, file: Path, encoder: Encoder, earlier: Path | None = None) -> None:
        self._encoder = encoder
        if earlier:
            shutil.copyfile(earlier, file)
        self._file = file.open("ab")

    def add(self, texts: Sequence[str]) -> None:
        """Add passages."""
        self._file.write(np.ascontiguousarray(self._encoder.encode_passages(texts), "<f4").data)

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


class VectorRanker:
    """Ranks passages with the encoder's minimum cosine or more."""

    def __init__(self, file: Path, size: int, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors = np.memmap(file, "<f4", "r").reshape(-1, size)

    def rank(self, question: str, k: int) -> Ranked:
        """At most `k` passages, best first."""
        query = self._encoder.encode_question(question)
        scores = np.empty(len(self._vectors), np.float32)
        for first in range(0, len(scores), BLOCK):
            block = slice(first, first + BLOCK)
            np.matmul(self._vectors[block], query, out=scores[block])
        lowest = np.float32(self._encoder.min_cosine)
        return best(scores, k, above=np.nextafter(lowest, np.float32(-2)))
