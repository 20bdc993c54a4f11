"""An encoder that needs no model."""

import numpy as np
import pytest

from graft.rag.corpora import engines


class Letters:
    """An encoder that counts letters; another `shift` is another encoder."""

    min_cosine = 0.1

    def __init__(self, shift=0):
        self.shift = shift

    def encode_passages(self, texts):
        counts = np.array([[t.lower().count(chr(97 + i)) for i in range(26)] for t in texts])
        vectors = np.roll(counts, self.shift, axis=1).astype(np.float32) + 1e-3
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode_question(self, question):
        return self.encode_passages([question])[0]


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    """Replaces the encoders, which take seconds to load; sets the `shift` of new ones."""
    made = {"shift": 0}
    monkeypatch.setattr(engines, "find_encoder", lambda name: Letters(made["shift"]))
    return made
