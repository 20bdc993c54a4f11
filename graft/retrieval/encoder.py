"""Encoders of passages and questions, compared by cosine."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graft.errors import InputError


class Encoder(Protocol):
    """Computes unit vectors; a passage with a cosine of `min_cosine` or more is relevant."""

    min_cosine: float

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, size]."""

    def encode_question(self, question: str) -> np.ndarray:
        """float32 [size]."""


def find_encoder(name: str) -> Encoder:
    """Load `static` (word vectors), `dense` (all-MiniLM-L6-v2) or `dense:NAME`."""
    kind, _, model = name.partition(":")
    if name == "static":
        from graft.retrieval.static import StaticEmbeddings

        return StaticEmbeddings()
    if name == "dense" or (kind == "dense" and model):
        from graft.retrieval.dense import MINILM, DenseEmbeddings

        return DenseEmbeddings(model or MINILM)
    raise InputError(f"unknown encoder {name!r}; choose static, dense or dense:NAME")
