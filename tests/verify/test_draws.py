"""Draws for all nodes at once: the tokens that are drawn node by node."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.sampling import NEAR_TOP, Sampler, SamplingParams
from graft.tree.draft_tree import from_paths, root_only
from graft.verify.draws import MAX_ROWS, NOT_DRAWN, Draws, draw_all
from graft.verify.walk import walk

V = 24
tokens = st.integers(0, V - 1)
trees = st.builds(
    from_paths, tokens, st.lists(st.lists(tokens, min_size=1, max_size=5), max_size=8)
)
parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 5, V - 1, V, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.1, 0.7, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    logit_bias=st.sampled_from([{}, {}, {2: 3.0, 5: -1.0, 7: -math.inf}]),
    seed=st.integers(-(1 << 63), (1 << 64) - 1),
)


@st.composite
def sequences(draw):
    """A tree, and a sampler that has a prompt and some output behind it."""
    params, choice = draw(parameters), draw(st.integers(0, 3))
    sampler = Sampler(params, draw(st.lists(tokens, max_size=6)), V, choice=choice)
    sampler.record(draw(st.lists(tokens, max_size=6)))
    return sampler, draw(trees)


def random_logits(rows, seed, *, tied=False, vocabulary=V):
    logits = 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))
    return logits.round() if tied else logits


def node_by_node(sampler, tree, logits):
    return [
        sampler.draw(row, path) for row, path in zip(logits, tree.paths(), strict=True)
    ]  # fmt: skip


@settings(max_examples=80, derandomize=True)
@given(
    samples=st.lists(sequences(), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    tied=st.booleans(),
)
def test_batched_draws_equal_draws_node_by_node(samples, seed, tied):
    counts = [len(tree) for _, tree in samples]
    logits = random_logits(sum(counts), seed, tied=tied)
    before = logits.clone()
    drawn_all = Draws(samples, logits).wait()
    for (sampler, tree), own, drawn in zip(samples, logits.split(counts), drawn_all, strict=True):
        assert drawn == node_by_node(sampler, tree, own)
        assert walk(tree, own, sampler, drawn) == walk(tree, own, sampler)
    assert torch.equal(logits, before)


def test_walk_over_given_draws_needs_no_sampler():
    tree = from_paths(9, [[7, 9], [8]])
    assert walk(tree, None, None, [7, 9, 0, 4]).path == [0, 1, 3]
    assert walk(tree, None, None, [8, 9, 3, 4]).next_token == 3


def test_nodes_under_a_process_are_left_to_the_walk():
    processed = Sampler(SamplingParams(), [], V, process=lambda _, logits: -logits)
    tree = from_paths(1, [[2, 3]])
    logits = random_logits(5, 0)
    greedy = Sampler(SamplingParams(), [], V)
    samples = [(processed, tree), (None, root_only(0)), (greedy, root_only(0))]
    drawn = Draws(samples, logits).wait()
    assert drawn == [[NOT_DRAWN] * 3, [NOT_DRAWN], [int(logits[4].argmax())]]
    assert walk(tree, logits[:3], processed, drawn[0]).next_token == int(logits[0].argmin())


def test_a_penalised_sampler_may_have_several_trees():
    sampler = Sampler(SamplingParams(presence_penalty=3.0), [], V)
    samples = [(sampler, from_paths(1, [[2, 3]])), (sampler, from_paths(1, [[4], [5, 6]]))]
    logits = random_logits(7, 3)
    drawn = Draws(samples, logits).wait()
    for (_, tree), own, part in zip(samples, logits.split([3, 4]), drawn, strict=True):
        assert part == node_by_node(sampler, tree, own)


def test_nucleus_beyond_the_candidates_is_left_to_the_walk():
    vocabulary = 3 * NEAR_TOP
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=0.9, seed=1), [], vocabulary)
    logits = torch.stack([torch.zeros(vocabulary), torch.zeros(vocabulary)])
    logits[1, 17] = 40.0
    tree = from_paths(3, [[4]])
    drawn = draw_all([(sampler, tree)], logits).tolist()
    assert drawn == [NOT_DRAWN, 17]
    assert walk(tree, logits, sampler, drawn) == walk(tree, logits, sampler)


@pytest.mark.parametrize("options", [{}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.01}], ids=str)
def test_more_rows_than_one_batch(options):
    vocabulary, rng = 4 * NEAR_TOP, np.random.default_rng(0)
    tree = from_paths(0, rng.integers(0, 9, (60, 5)).tolist())
    params = SamplingParams(temperature=0.9, seed=4, **options)
    samples = [(Sampler(params, [], vocabulary, choice=i), tree) for i in range(2)]
    assert 2 * len(tree) > MAX_ROWS
    logits = 3 * random_logits(2 * len(tree), 1, vocabulary=vocabulary)
    drawn = Draws(samples, logits).wait()
    for (sampler, _), own, part in zip(samples, logits.split(len(tree)), drawn, strict=True):
        assert part == node_by_node(sampler, tree, own)
