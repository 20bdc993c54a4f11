"""Features: what the output layer of a target is applied to, given by every forward."""

import numpy as np
import pytest
import torch
from daily import daily
from tiny import tiny_engine, tiny_network

from graft.tree.draft_tree import chain, from_paths

PROMPT = [40, 41, 42, 50, 51, 60, 7]
TREE = from_paths(9, [[10, 11, 12], [10, 13], [14]])


@pytest.fixture(
    scope="module",
    params=daily(
        ["panels", "lean", "hook", "graphed", "invariant lean", "invariant hook"],
        "panels", "lean", "hook", "invariant lean", "invariant hook",
    ),
)  # fmt: skip
def forward(request):
    return request.param


@pytest.fixture(scope="module")
def network():
    return tiny_network()


@pytest.fixture(scope="module")
def model(network, forward):
    kind = forward.split()[-1]
    model = tiny_engine(network, forward=kind, invariant=forward.startswith("invariant")).model
    model.keep_features([-1])
    model.keep_features([1, 0])
    return model


def reference(network, tokens, layers=(-1,)):
    with torch.no_grad():
        states = network.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0] for layer in layers], -1)


def test_features_of_prompts_and_trees(model, network):
    extent, other = model.open(64), model.open(64)
    model.prefill(extent, PROMPT)
    expected = reference(network, PROMPT)
    torch.testing.assert_close(model.features(range(7)), expected, atol=1e-4, rtol=1e-4)
    model.score([other, extent], [chain(PROMPT), TREE], last_only=[True, False])
    for node, path in enumerate(TREE.paths()):
        expected = reference(network, [*PROMPT, 9, *path])[-1]
        found = model.features([len(PROMPT) + node])[0]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    model.close(extent)
    model.close(other)


@pytest.mark.parametrize("layers", [(0, 1, -1), (1,), (-1, 1)])
def test_features_of_several_layers_stand_side_by_side(model, network, layers):
    extent = model.open(64)
    model.prefill(extent, PROMPT)
    expected = reference(network, PROMPT, layers)
    torch.testing.assert_close(model.features(range(7), layers), expected, atol=1e-4, rtol=1e-4)
    model.score([extent], [TREE])
    for node, path in enumerate(TREE.paths()):
        expected = reference(network, [*PROMPT, 9, *path], layers)[-1]
        found = model.features([node], layers)[0]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    model.close(extent)


def test_features_times_the_output_layer_are_the_logits(model, network):
    extent = model.open(64)
    (logits,) = model.score([extent], [TREE])
    some = torch.tensor([5, 77, 3])
    weight = model.forward.output_weight(some)
    found = model.features(np.arange(len(TREE))) @ weight.T
    torch.testing.assert_close(found, logits[:, some], atol=1e-3, rtol=1e-3)
    assert torch.equal(weight, network.lm_head.weight[some].detach())
    assert torch.equal(model.forward.output_weight(None), network.lm_head.weight.detach())
    tokens = torch.tensor([[1, 2, 3], [100, 1, 127]])
    assert torch.equal(model.forward.embed(tokens), network.model.embed_tokens(tokens).detach())
    model.close(extent)
