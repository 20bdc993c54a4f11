"""A built corpus on disk.

Vectors are memory-mapped and searched exhaustively. A million of 256 numbers are a gigabyte, read
for every question; use Milvus for more.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graft.rag.corpora.engines import BM25, load_encoders
from graft.rag.corpora.folder import LEXICAL, Texts, read_manifest, vectors_file
from graft.rag.corpus import Hit
from graft.retrieval.bm25 import Bm25Index
from graft.retrieval.named import RANK_OFFSET
from graft.retrieval.retriever import Encoder, Ranked, best_above

DEPTH = 100  # minimum number of passages of each engine that are fused
BLOCK = 1 << 16  # vectors compared at a time


def fused(rankings: Sequence[Ranked], k: int) -> Ranked:
    """The rankings fused by reciprocal rank (see graft.retrieval.named)."""
    totals: dict[int, float] = defaultdict(float)
    for numbers, _ in rankings:
        for rank, number in enumerate(numbers.tolist(), 1):
            totals[number] += 1 / (RANK_OFFSET + rank)
    order = sorted(totals, key=lambda number: (-totals[number], number))[:k]
    return np.array(order, np.int64), np.array([totals[number] for number in order])


class VectorIndex:
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
        return best_above(scores, k, np.nextafter(lowest, np.float32(-2)))


class BuiltCorpus:
    """A `Corpus` in a folder of `build`; several engines are fused by rank."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        self.manifest = read_manifest(folder)
        about = self.manifest.about
        self._texts = Texts(folder)
        encoders = load_encoders(about, str(folder))
        self._indexes: list[Bm25Index | VectorIndex] = [
            Bm25Index.load(folder / LEXICAL)
            if name == BM25
            else VectorIndex(folder / vectors_file(number), about.size(name), encoders[name])
            for number, name in enumerate(about.engines)
        ]

    def __len__(self) -> int:
        return len(self._texts)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Corpus."""
        if not query.strip():
            return []
        if len(self._indexes) == 1:
            numbers, scores = self._indexes[0].rank(query, k)
        else:
            depth = max(DEPTH, k)
            numbers, scores = fused([each.rank(query, depth) for each in self._indexes], k)
        return [
            Hit(self._texts[number], score)
            for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
        ]
