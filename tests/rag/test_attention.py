"""Attention weights of the last layer."""

import numpy as np
import pytest
import torch
from tiny import tiny_engine, tiny_network

from graft.errors import InputError
from graft.rag.dragin import ModelAttention
from graft.sampling import SamplingParams

TOKENS = [5, 6, 7, 8, 5, 9, 11, 6]


def told_by(network, tokens):
    """The same from transformers itself."""
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        output = network(torch.tensor([tokens]), output_attentions=True, use_cache=False)
    return output.attentions[-1][0].float().numpy()


@pytest.mark.parametrize(
    "forward", ["panels", "lean", "hook", pytest.param("graphed", marks=pytest.mark.slow)]
)
def test_weights_equal_those_of_transformers(forward):
    if forward == "graphed":
        pytest.importorskip("triton", reason="Triton is not installed")
        if torch.cuda.is_available():
            pytest.skip("compiled there: pytest -m gpu")
    network = tiny_network()
    engine = tiny_engine(network, forward=forward)
    engine.generate([5, 6, 7], SamplingParams(max_tokens=2))  # others have rows too
    weights = ModelAttention(engine)(TOKENS)
    np.testing.assert_allclose(weights, told_by(network, TOKENS), atol=1e-5)


def test_weights_are_the_same_when_computed_in_slabs():
    network = tiny_network()
    weights = ModelAttention(tiny_engine(network, forward="lean", invariant=True))
    np.testing.assert_allclose(weights(TOKENS), told_by(network, TOKENS), atol=1e-5)


def test_every_row_sums_to_one_and_is_causal():
    weights = ModelAttention(tiny_engine(tiny_network()))(TOKENS)
    assert np.allclose(weights.sum(-1), 1, atol=1e-5)
    assert np.allclose(np.triu(weights, 1), 0)


def test_rows_are_freed_and_running_answers_continue():
    engine = tiny_engine(tiny_network())
    expected = engine.generate([5, 6, 7]).token_ids
    taken = engine.model.arena.taken
    stream = engine.stream([5, 6, 7])
    events = iter(stream)
    first = next(events).token
    ModelAttention(engine)(TOKENS)
    assert [first, *(event.token for event in events)] == expected
    assert engine.model.arena.taken == taken


@pytest.mark.parametrize("forward", ["panels", "lean", "hook"])
def test_sliding_window_is_refused(forward):
    network = tiny_network("mistral", sliding_window=6)
    attention = ModelAttention(tiny_engine(network, forward=forward))
    weights = attention(TOKENS[:6])
    np.testing.assert_allclose(weights, told_by(network, TOKENS[:6]), atol=1e-5)
    with pytest.raises(InputError, match="does not provide; choose --policy"):
        attention(TOKENS)


def test_attention_of_the_real_model(smollm2):
    tokens = smollm2.encoder.text("The cat sat on the mat.")
    weights = ModelAttention(smollm2)(tokens)
    assert weights.shape == (9, len(tokens), len(tokens))
    assert weights.sum(-1) == pytest.approx(1, abs=1e-4)
