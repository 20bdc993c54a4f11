"""The likelihood of a text after a prompt, against the model's own forward."""

import numpy as np
import pytest
import torch
from late import Late
from tiny import VOCABULARY, tiny_engine, tiny_network

from benchmarks import likelihood
from benchmarks.likelihood import log_likelihood
from graft import SamplingParams
from graft.errors import ContextLengthError, InputError

NUMBERS = np.random.default_rng(0).integers(3, VOCABULARY, 60).tolist()


@pytest.mark.parametrize("piece", [7, 256])
@pytest.mark.parametrize("split", [1, 20, 59])
def test_every_token_has_the_models_log_probability(split, piece, monkeypatch):
    monkeypatch.setattr(likelihood, "CHUNK", piece)
    network = tiny_network()
    with torch.no_grad():
        logits = network(torch.tensor([NUMBERS])).logits[0].log_softmax(-1)
    expected = [float(logits[i - 1, NUMBERS[i]]) for i in range(split, len(NUMBERS))]
    engine = tiny_engine(network)
    found = log_likelihood(engine, NUMBERS[:split], NUMBERS[split:])
    assert found == pytest.approx(expected, abs=1e-4)
    assert engine.generate(NUMBERS[:split]).token_ids  # the engine still works


def test_text_beyond_the_context_is_refused():
    engine = tiny_engine(context_length=32)
    with pytest.raises(ContextLengthError, match="60 tokens but tiny takes at most 32"):
        log_likelihood(engine, NUMBERS[:30], NUMBERS[30:])
    with pytest.raises(InputError, match="a prompt and a text"):
        log_likelihood(engine, NUMBERS, [])


def test_step_in_flight_is_kept():
    engine = tiny_engine(wrap=Late)
    alone = engine.generate(NUMBERS[:9], SamplingParams(max_tokens=12, ignore_eos=True))
    stream = engine.stream(NUMBERS[:9], SamplingParams(max_tokens=12, ignore_eos=True))
    events = iter(stream)
    for _ in range(3):
        next(events)
    with pytest.raises(InputError, match="the engine is generating"):
        log_likelihood(engine, NUMBERS[:9], NUMBERS[9:])
    assert [*events]
    assert stream.result.token_ids == alone.token_ids
    assert len(log_likelihood(engine, NUMBERS[:9], NUMBERS[9:])) == 51
