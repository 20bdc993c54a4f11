"""Vectors of passages on disk, searched exhaustively.

A million vectors of 256 numbers are a gigabyte, read for every question; use Milvus for more.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graft.rag.corpora.ranking import Ranked, best
from graft.retrieval.encoder import Encoder

BLOCK = 1 << 16  # vectors compared at a time


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
        """See Ranker."""
        query = self._encoder.encode_question(question)
        scores = np.empty(len(self._vectors), np.float32)
        for first in range(0, len(scores), BLOCK):
            block = slice(first, first + BLOCK)
            np.matmul(self._vectors[block], query, out=scores[block])
        lowest = np.float32(self._encoder.min_cosine)
        return best(scores, k, above=np.nextafter(lowest, np.float32(-2)))
