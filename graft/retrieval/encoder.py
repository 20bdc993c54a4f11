"""Encoders of passages: one vector for each, found again by the cosine with a question's."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graft.errors import InputError


class Encoder(Protocol):
    """Who makes unit vectors. `near` is the cosine from which on a passage is worth reading."""

    near: float

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, size]."""

    def encode_question(self, question: str) -> np.ndarray:
        """float32 [size]."""


def find_encoder(name: str) -> Encoder:
    """`static` (word vectors), `dense` (all-MiniLM-L6-v2) or `dense:NAME`; loaded now."""
    kind, _, model = name.partition(":")
    if name == "static":
        from graft.retrieval.static import StaticEmbeddings

        return StaticEmbeddings()
    if name == "dense" or (kind == "dense" and model):
        from graft.retrieval.dense import MINILM, DenseEmbeddings

        return DenseEmbeddings(model or MINILM)
    raise InputError(f"there is no encoder {name}: choose static, dense or dense:NAME")
