"""The walk: goes where the target goes, and its output is the target's whatever the tree."""

import numpy as np
import pytest
import torch
from daily import daily
from scipy.stats import chisquare

from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, from_paths, root_only
from graft.verify.walk import walk

V = 5
TREE = from_paths(9, [[7, 9], [8]])  # 9 -> 7 -> 9 and 9 -> 8: nodes 0, 1 (7), 2 (8), 3 (9)


def logits_choosing(choices, vocabulary=10):
    logits = torch.zeros(len(choices), vocabulary)
    logits[range(len(choices)), choices] = 1
    return logits


@pytest.mark.parametrize(
    ("target_choices", "path", "next_token"),
    [
        ([5, 0, 0, 0], [0], 5),  # no draft token is accepted
        ([7, 9, 0, 4], [0, 1, 3], 4),  # both levels right, then one more
        ([7, 8, 0, 4], [0, 1], 8),  # the second level wrong, though 8 is drafted elsewhere
        ([8, 9, 3, 4], [0, 2], 3),  # the second branch was right
        ([8, 9, 9, 4], [0, 2], 9),  # and ends there, though the first one goes on with 9
    ],
)
def test_greedy_walks_the_branch_the_target_chose(target_choices, path, next_token):
    assert TREE.tokens.tolist() == [9, 7, 8, 9]
    verdict = walk(TREE, logits_choosing(target_choices), Sampler(SamplingParams(), [], 10))
    assert (verdict.path, verdict.next_token) == (path, next_token)


def test_without_draft_one_token_is_generated():
    verdict = walk(root_only(3), logits_choosing([6]), Sampler(SamplingParams(), [], 10))
    assert (verdict.path, verdict.next_token) == ([0], 6)


def test_penalties_see_the_walked_path():
    params = SamplingParams(presence_penalty=2.0)
    verdict = walk(chain([1, 4, 4]), logits_choosing([4, 4, 4]), Sampler(params, [], 10))
    assert verdict.path == [0, 1]  # 4 once; the second time another token is better
    assert verdict.next_token == 0


class Target:
    """Random next-token distributions of a toy language, one for every prefix."""

    def __init__(self, seed):
        self._rng, self._known = np.random.default_rng(seed), {}

    def p(self, prefix):
        key = tuple(prefix)
        if key not in self._known:
            self._known[key] = self._rng.dirichlet(np.ones(V))
        return self._known[key]

    def logits(self, prefix):
        return torch.tensor(np.log(self.p(prefix)), dtype=torch.float32)

    def write(self, sampler, prefix, length):
        """Plain decoding."""
        text = list(prefix)
        while len(text) < length:
            text.append(sampler.draw(self.logits(text), text))
        return text


def prefix_of(tree, node):
    tokens = []
    while node > 0:
        tokens.append(int(tree.tokens[node]))
        node = tree.parents[node]
    return tokens[::-1]


def walked(tree, logits, sampler):
    """What one step emits."""
    verdict = walk(tree, logits, sampler)
    return [int(tree.tokens[n]) for n in verdict.path[1:]] + [verdict.next_token]


TREES = {
    "chain": chain([0, 1, 2, 3]),
    "wide": from_paths(0, [[token] for token in range(4)]),
    "fused": from_paths(0, [[1, 2, 0], [1, 3], [4], [0, 0], [0, 1, 4]]),
}


@pytest.mark.parametrize("name", daily(TREES, "chain", "fused"))
def test_the_joint_distribution_of_three_tokens_is_the_targets(name):
    tree, target, draws = TREES[name], Target(3), 600
    logits = torch.stack([target.logits(prefix_of(tree, n)) for n in range(len(tree))])
    counts, accepted = np.zeros((V, V, V)), 0
    for seed in range(draws):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), [], V)
        emitted = walked(tree, logits, sampler)
        accepted += len(emitted) - 1
        text = target.write(sampler, emitted[:3], 3)
        plain = Sampler(SamplingParams(temperature=1.0, seed=seed), [], V)
        assert text == target.write(plain, [], 3)  # not only in distribution
        counts[tuple(text)] += 1
    joint = np.array(
        [
            [target.p([])[a] * target.p([a])[b] * target.p([a, b]) for b in range(V)]
            for a in range(V)
        ]
    )
    often = draws * joint > 5
    expected = np.append(draws * joint[often], draws * joint[~often].sum())
    observed = np.append(counts[often], counts[~often].sum())
    assert chisquare(observed, expected * draws / expected.sum()).pvalue > 1e-3
    # closed form: a node is accepted with the target's probability of its whole path
    rate = sum(
        np.prod([target.p(prefix_of(tree, n)[:i])[t] for i, t in enumerate(prefix_of(tree, n))])
        for n in range(1, len(tree))
    )
    assert accepted / draws == pytest.approx(rate, abs=4 * 1.5 / draws**0.5)
