"""Vectors of passages on disk, all compared with the question's: exact, and as fast as memory.

A million vectors of 256 numbers are a gigabyte, read for every question; for more there is Milvus.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graft.rag.corpora.ranking import Ranked, best
from graft.retrieval.encoder import Encoder

BLOCK = 1 << 16  # vectors compared at a time


class VectorWriter:
    """Appends vectors to a file, which may begin with those of an `earlier` one."""

    def __init__(self, file: Path, encoder: Encoder, earlier: Path | None = None) -> None:
        self._encoder = encoder
        if earlier:
            shutil.copyfile(earlier, file)
        self._file = file.open("ab")

    def add(self, texts: Sequence[str]) -> None:
        """More passages."""
        self._file.write(np.ascontiguousarray(self._encoder.encode_passages(texts), "<f4").data)

    def finish(self) -> None:
        """All passages are there."""
        self._file.close()


class VectorRanker:
    """Ranks by cosine what is as near as the encoder's `near`."""

    def __init__(self, file: Path, size: int, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors = np.memmap(file, "<f4", "r").reshape(-1, size)

    def rank(self, question: str, k: int) -> Ranked:
        """See Ranker."""
        asked = self._encoder.encode_question(question)
        scores = np.empty(len(self._vectors), np.float32)
        for first in range(0, len(scores), BLOCK):
            np.matmul(
                self._vectors[first : first + BLOCK], asked, out=scores[first : first + BLOCK]
            )
        least = np.float32(self._encoder.min_cosine)
        return best(scores, k, above=np.nextafter(least, np.float32(-2)))
