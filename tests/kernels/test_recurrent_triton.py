"""Convolutions and scans along the paths of trees against transformers' functions over each path;
see test_decoder_triton.py."""

import pytest
import torch
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_fn,
    torch_recurrent_gated_delta_rule,
)

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.recurrent_triton import convolve, delta_rule, selective_update

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Two sequences: a tree behind the state in slot 3 and a chain behind nothing, of which only the
# last node keeps its state; node 9 is padding.
PARENTS = [-4, 0, 1, 0, 3, 1, -1, 6, 7, -1]
SLOTS = [4, 5, 6, 7, 1, 2, -1, -1, 8, -1]
LINKS = torch.tensor([PARENTS, SLOTS], dtype=torch.int32, device=DEVICE).T.contiguous()
WALKS = torch.tensor([[0, 6], [6, 9], [0, 0]], dtype=torch.int32, device=DEVICE)
TABLES = (LINKS, WALKS, torch.tensor([2], device=DEVICE))
NODES = 9
SLOT_COUNT = 9


def path_of(node: int) -> tuple[list[int], int]:
    """The nodes from the root to this one, and the slot of the state before them."""
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path, -1 - PARENTS[path[0]]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def random_states(*shape: int) -> torch.Tensor:
    states = random(SLOT_COUNT, *shape, seed=9)
    states[0] = 0
    return states


def assert_kept(states: torch.Tensor, before: torch.Tensor, node: int, expected) -> None:
    """The node's state is in its slot; nothing else was changed."""
    if SLOTS[node] >= 0:
        torch.testing.assert_close(states[SLOTS[node]], expected, rtol=1e-4, atol=1e-5)
    for slot in set(range(SLOT_COUNT)) - set(SLOTS):
        assert torch.equal(states[slot], before[slot])


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_convolutions_follow_paths(activation, width, biased):
    channels = 20
    inputs = random(10, channels).T  # as modules make them: nodes first, then transposed
    weight, bias = random(channels, width, seed=1), random(channels, seed=2) if biased else None
    states = random_states(channels, width - 1)
    before = states.clone()
    found = convolve(inputs, weight, bias, states, LINKS, silu=activation == "silu")
    assert found.T.is_contiguous()
    for node in range(NODES):
        path, slot = path_of(node)
        columns = torch.cat([before[slot], inputs[:, path]], 1)
        expected = causal_conv1d_fn(columns[None], weight, bias, activation)[0, :, -1]
        torch.testing.assert_close(found[:, node], expected, rtol=1e-5, atol=1e-5)
        assert_kept(states, before, node, columns[:, 1 - width :])


@pytest.mark.parametrize(("size", "width"), [(16, 24), (24, 100)])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_delta_rules_follow_paths(size, width, by_channel, normed):
    own = recurrent_kimi_delta_attention if by_channel else torch_recurrent_gated_delta_rule
    heads = 3
    both = random(10, 2 * heads * size)  # parts of longer rows
    query, key = (each.view(10, heads, size) for each in both.chunk(2, 1))
    value, strength = random(10, heads, width, seed=1), random(10, heads, seed=2).sigmoid()
    decay = -random(10, heads, *([size] if by_channel else []), seed=3).exp()
    inputs = (query, key, value, decay, strength)
    states = random_states(heads, size, width)
    before = states.clone()
    found = delta_rule(*inputs, states, TABLES, normed=normed)
    for node in range(NODES):
        path, slot = path_of(node)
        q, k, v, g, beta = (each[None, path] for each in inputs)
        expected, state = own(
            q, k, v, g=g, beta=beta, initial_state=before[slot : slot + 1],
            output_final_state=True, use_qk_l2norm_in_kernel=normed,
        )  # fmt: skip
        torch.testing.assert_close(found[node], expected[0, -1], rtol=1e-4, atol=1e-4)
        assert_kept(states, before, node, state[0])


@pytest.mark.parametrize("limits", [(0.0, float("inf")), (0.1, 0.8)])
@pytest.mark.parametrize(("size", "width"), [(16, 8), (80, 128)])
def test_selective_updates_follow_paths(size, width, limits):
    heads, groups = 4, 2
    rows = random(10, heads * size + 2 * groups * width + heads)  # parts of longer rows
    sizes = [heads * size, groups * width, groups * width, heads]
    x, b, c, steps = rows.split(sizes, 1)
    inputs = (x.view(10, heads, size), steps, *(each.view(10, groups, width) for each in (b, c)))
    rates, skip = -random(heads, seed=1).exp(), random(heads, seed=2)
    bias = torch.linspace(-6, 1, heads, device=DEVICE)
    states = random_states(heads, size, width)
    before = states.clone()
    options = {"rates": rates, "skip": skip, "bias": bias, "limits": limits}
    found = selective_update(*inputs, states, TABLES, **options)
    for node in range(NODES):
        path, slot = path_of(node)
        x, steps, b, c = (each[None, path] for each in inputs)
        expected, state = mamba2_chunk_scan(
            x, steps, rates, b, c, 16, D=skip, dt_bias=bias, dt_softplus=True, dt_limit=limits,
            initial_states=before[slot : slot + 1], return_final_states=True,
        )  # fmt: skip
        torch.testing.assert_close(found[node], expected[0, -1], rtol=1e-4, atol=1e-4)
        assert_kept(states, before, node, state[0])


def test_a_node_has_the_same_bits_whatever_else_is_in_the_step():
    inputs = [random(10, 2, 16), random(10, 2, 16, seed=1), random(10, 2, 16, seed=2)]
    inputs += [-random(10, 2, seed=3).exp(), random(10, 2, seed=4).sigmoid()]
    states = random_states(2, 16, 16)
    alone = states.clone()
    together = delta_rule(*inputs, states, TABLES, normed=True)
    for node in range(NODES):  # one by one, each from the state that its parent has left
        above = PARENTS[node]
        before = SLOTS[above] if above >= 0 else -1 - above
        if before < 0:
            continue
        links = torch.tensor([[-1 - before, SLOTS[node]]], dtype=torch.int32, device=DEVICE)
        walks = torch.tensor([[0, 1]], dtype=torch.int32, device=DEVICE)
        tables = (links, walks, torch.tensor([1], device=DEVICE))
        one = [each[node : node + 1] for each in inputs]
        assert torch.equal(delta_rule(*one, alone, tables, normed=True)[0], together[node])
    assert torch.equal(alone[SLOTS[:6]], states[SLOTS[:6]])
