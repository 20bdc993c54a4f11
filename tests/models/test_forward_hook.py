"""A network that runs through the hook stays its owner's: nothing of it is changed for good."""

import copy

import numpy as np
import pytest
import torch
from tiny_architectures import HOOKED, build
from transformers import BloomConfig, BloomForCausalLM

from graft.errors import UnsupportedModelError
from graft.models.forward_hook import NAME, HookedAttention
from graft.models.language_model import LanguageModel
from graft.models.load import build_forward
from graft.models.probe import reference_logits

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = np.random.default_rng(0).integers(3, 60, 30).tolist()


def configs(network):
    return [(id(m), id(vars(m)["config"])) for m in network.modules() if "config" in vars(m)]


@pytest.mark.parametrize("name", ["llama", "qwen3.5", "granite-hybrid", *HOOKED])
def test_a_network_is_as_it_was_between_steps(name):
    network = build(name)
    before = copy.deepcopy(network.config.to_dict()), configs(network)
    logits = reference_logits(network, [TEXT])[0]
    forward, _ = build_forward(network, name=name, kind="hook")
    model = LanguageModel(forward, vocabulary=64, context_length=512)
    model.prefill(model.open(40), TEXT)
    assert (network.config.to_dict(), configs(network)) == before
    assert network.config._attn_implementation == "eager"
    torch.testing.assert_close(reference_logits(network, [TEXT])[0], logits, rtol=0, atol=0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_fails_gives_the_attention_back(error):
    network = build("gemma2")
    before, seen, attention = configs(network), [], HookedAttention(network)

    def step():
        with attention.used():
            seen.append(network.config._attn_implementation)
            raise error

    with pytest.raises(error):
        step()
    assert seen == [NAME]
    assert configs(network) == before
    assert network.config._attn_implementation == "eager"


def test_what_a_network_remembers_of_a_step_can_still_be_trained():
    network, kept = build("llama"), []
    network.model.register_forward_hook(lambda _, __, output: kept.append(output[0]))
    build_forward(network, name="llama", kind="hook")
    assert kept
    assert not any(each.is_inference() for each in kept)


def test_a_network_without_attention_to_replace_is_refused_in_one_line():
    config = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(UnsupportedModelError, match="mine cannot be used: only 0 of 2") as error:
        build_forward(BloomForCausalLM(config), name="mine")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["hook", "method", "subclass"])
def test_modules_that_someone_changed_are_run_as_they_are(change):
    network = build("llama")
    layer = network.model.layers[1].mlp.down_proj
    if change == "hook":
        layer.register_forward_hook(lambda _, __, output: output * 1.0001)
    elif change == "method":
        layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight) * 1.0001
    else:
        layer.__class__ = type("Adapted", (torch.nn.Linear,), {})
    assert build_forward(network, name="changed")[1] == "hook"
