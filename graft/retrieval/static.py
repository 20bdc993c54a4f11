"""Static word embeddings: the mean of a window's word vectors; cheap, and matches synonyms.

Vectors and tokenizer are WordLlama's (pip install wordllama: 16 MB, MIT, no download later). Its
files are read directly: importing it changes the logging configuration, and its loader fetches the
tokenizer from the web.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.retrieval.retriever import Relevance, best, edges

WINDOW = 32  # words; of 24 to 256 the best recall on QMSum's meetings in the first tenth
BATCH = 32  # texts whose word vectors are in memory together
# Minimum cosine of a relevant text, measured as in dense.py: 5 % of chunks of unrelated documents
# reach it (held out 7 %), and the best chunk of 99 % of questions (100 %).
MIN_COSINE = 0.22
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


class StaticEmbeddings:
    """Cosine of the question's mean word vector with that of a text's best window; as an encoder,
    of the whole passage."""

    min_cosine = MIN_COSINE

    def __init__(self) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        folder = _folder()
        [vectors] = load_file(folder / WEIGHTS).values()
        self._vectors = vectors.astype(np.float32)  # [words, size]
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))

    def relevance(self, question: str, texts: Sequence[str]) -> Relevance:
        """See Retriever."""
        query = self._embed([question])[0][0]
        found = [
            best(vectors @ query, counts)
            for first in range(0, len(texts), BATCH)
            for vectors, counts in [self._embed(texts[first : first + BATCH])]
        ]
        scores = np.concatenate([np.zeros(0, np.float32), *found])
        return Relevance(scores, scores >= MIN_COSINE)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """See Encoder: the mean of all words."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return self._means([each.ids for each in encoded])

    def encode_question(self, question: str) -> np.ndarray:
        """See Encoder."""
        return self.encode_passages([question])[0]

    def _embed(self, texts: Sequence[str]) -> tuple[np.ndarray, list[int]]:
        """Unit vectors of all windows [windows, size], and the number of windows of each text."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        words = [each.ids for each in encoded]
        windows = [edges(len(each), WINDOW) for each in words]
        parts = [each[a:b] for each, cuts in zip(words, windows, strict=True) for a, b in cuts]
        return self._means(parts), [len(cuts) for cuts in windows]

    def _means(self, parts: Sequence[Sequence[int]]) -> np.ndarray:
        """The unit vector of each part's mean [parts, size]; zeros for a part without words."""
        means = np.zeros((len(parts), self._vectors.shape[1]), np.float32)
        for mean, part in zip(means, parts, strict=True):
            if part:
                self._vectors[part].mean(0, out=mean)
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
        return means


def _folder() -> Path:
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise InputError("static retrieval needs wordllama; type: pip install wordllama")
    return Path(found.submodule_search_locations[0])
