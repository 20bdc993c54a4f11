"""A built corpus on disk."""

from pathlib import Path

from graft.rag.corpora.engines import BM25, load_encoders
from graft.rag.corpora.folder import LEXICAL, Texts, read_manifest, vectors_file
from graft.rag.corpora.indexes import VectorIndex, fused
from graft.rag.corpus import Hit
from graft.retrieval.bm25 import Bm25Index

DEPTH = 100  # minimum number of passages of each engine that are fused


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
