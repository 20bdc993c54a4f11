"""Attention weights of the last layer."""

import numpy as np
import pytest
from tiny import tiny_network

from graft.rag.attention import LoadedAttention, NetworkAttention


def test_every_row_sums_to_one_and_sees_nothing_later():
    weights = NetworkAttention(tiny_network()).attention_of([5, 6, 7, 8])
    assert weights.shape == (4, 4, 4)
    assert np.allclose(weights.sum(-1), 1, atol=1e-5)
    assert np.allclose(np.triu(weights, 1), 0)


def test_a_real_checkpoint_is_read_when_first_asked(smollm2):
    attention = LoadedAttention(smollm2.loaded)
    weights = attention.attention_of(smollm2.encoder.text("The cat sat on the mat."))
    assert weights.shape[0] == 9
    assert weights.sum(-1) == pytest.approx(1, abs=1e-4)
