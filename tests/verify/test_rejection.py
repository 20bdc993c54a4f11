"""The classic rule: the target's distribution from a drafter's samples."""

import numpy as np
import pytest
import torch
from daily import daily
from scipy.stats import chisquare

from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, from_paths
from graft.verify.chain import rejection
from graft.verify.walk import walk

V = 5


@pytest.mark.parametrize("seed", range(20))
def test_the_rule_gives_p_in_closed_form(seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(V, 0.5)), rng.dirichlet(np.full(V, 0.5))
    kept = np.minimum(p, q)  # q(x) * min(1, p(x) / q(x))
    residual = np.maximum(p - q, 0)
    assert np.allclose(kept + (1 - kept.sum()) * residual / residual.sum(), p, atol=1e-12)


def tables(seed, concentration=1.0):
    """First-token distribution [V] and second-token distributions [V, V] given the first."""
    rng = np.random.default_rng(seed)
    alpha = np.full(V, concentration)
    return rng.dirichlet(alpha), rng.dirichlet(alpha, V)


def sampled_chain(q, rng):
    first = rng.choice(V, p=q[0])
    second = rng.choice(V, p=q[1][first])
    probs = torch.tensor(np.stack([q[0], q[1][first], np.zeros(V)]), dtype=torch.float32)
    return chain([0, first, second], probs=probs)


def log_of(p):
    return torch.tensor(np.log(p), dtype=torch.float32)


@pytest.mark.parametrize("seed", daily([0, 1], 0))
def test_two_tokens_have_the_targets_joint_distribution(seed):
    p, q, draws = tables(seed), tables(seed + 100, 0.4), 2000
    rng, counts = np.random.default_rng(seed), np.zeros((V, V))
    for number in range(draws):
        tree = sampled_chain(q, rng)
        sampler = Sampler(SamplingParams(temperature=1.0, seed=number), [], V)
        logits = torch.stack([log_of(p[0]), log_of(p[1][tree.tokens[1]]), torch.zeros(V)])
        verdict = rejection(tree, logits, sampler)
        emitted = [int(tree.tokens[n]) for n in verdict.path[1:]] + [verdict.next_token]
        if len(emitted) == 1:
            emitted.append(sampler.draw(log_of(p[1][emitted[0]]), emitted))
        counts[tuple(emitted[:2])] += 1
    expected = draws * p[0][:, None] * p[1]
    often = expected > 5
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum() + 1e-9)
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


def test_a_draft_from_p_itself_is_always_accepted():
    p, rng = tables(4), np.random.default_rng(4)
    for number in range(200):
        tree = sampled_chain(p, rng)
        sampler = Sampler(SamplingParams(temperature=1.0, seed=number), [], V)
        logits = torch.stack([log_of(p[0]), log_of(p[1][tree.tokens[1]]), torch.zeros(V)])
        # float32 of the same numbers may differ in the last bit: all but never rejects
        assert rejection(tree, logits, sampler).path == [0, 1, 2]


@pytest.mark.parametrize("seed", range(10))
def test_at_temperature_zero_it_is_greedy(seed):
    p, q, rng = tables(seed), tables(seed + 50), np.random.default_rng(seed)
    tree = sampled_chain(q, rng)
    logits = torch.stack([log_of(p[0]), log_of(p[1][tree.tokens[1]]), log_of(p[1][0])])
    sampler = Sampler(SamplingParams(), [], V)
    assert rejection(tree, logits, sampler) == walk(tree, logits, sampler)


def test_trees_without_q_are_walked():
    tree = from_paths(0, [[1, 2], [3]])
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3), [], V)
    logits = torch.stack([log_of(tables(i)[0]) for i in range(len(tree))])
    assert rejection(tree, logits, sampler) == walk(tree, logits, sampler)


def test_siblings_with_q_are_refused():
    tree = from_paths(0, [[1], [2]])
    tree = type(tree)(
        tree.tokens, tree.parents, tree.scores, tree.sources, probs=torch.full((3, V), 0.2)
    )
    with pytest.raises(ValueError, match="chain"):
        rejection(tree, torch.zeros(3, V), Sampler(SamplingParams(temperature=1.0), [], V))
