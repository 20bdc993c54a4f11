"""The budget cut against a search that looks at every node again for each one it takes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_draft_tree import assert_sound, path_of
from test_fuse import as_set, scored_trees

from graft.tree.draft_tree import DraftTree, chain, from_paths
from graft.tree.prune import best_first, cut, keep, starting_with, strongest, without
from graft.tree.relations import strongest_nodes


def brute_force(tree: DraftTree, budget: int) -> list[int]:
    """Take the best node whose parent was taken, again and again."""
    taken = [0]
    while len(taken) < min(len(tree), budget + 1):
        frontier = [i for i in range(1, len(tree)) if i not in taken and tree.parents[i] in taken]
        taken.append(max(frontier, key=lambda i: (tree.scores[i], -i)))
    return taken


def falling(tree: DraftTree) -> DraftTree:
    """Scores multiplied along the path, as probabilities are."""
    scores = tree.scores.copy()
    for i in range(1, len(tree)):
        scores[i] *= scores[tree.parents[i]]
    return replace(tree, scores=scores)


@given(scored_trees())
def test_the_order_is_that_of_the_brute_force_search(tree):
    assert best_first(tree) == brute_force(tree, len(tree))


@given(scored_trees(), st.integers(0, 30))
def test_every_cut_is_closed_under_parents(tree, budget):
    smaller = cut(tree, budget)
    assert_sound(smaller)
    assert len(smaller) == min(len(tree), budget + 1)
    assert as_set(smaller) <= as_set(tree)
    kept = {path_of(tree, i) for i in brute_force(tree, budget)}
    assert {path_of(smaller, i) for i in range(len(smaller))} == kept


@given(scored_trees(), st.integers(0, 30))
def test_with_scores_that_fall_along_paths_the_best_nodes_are_kept(tree, budget):
    tree = falling(tree)
    smaller = cut(tree, budget)
    best = np.sort(tree.scores[1:])[::-1][:budget]
    np.testing.assert_array_equal(np.sort(smaller.scores[1:])[::-1], best)


@given(scored_trees())
def test_a_budget_that_suffices_returns_the_tree_itself(tree):
    assert cut(tree, len(tree) - 1) is tree


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [(0, [1]), (1, [1, 2]), (2, [1, 2, 3]), (3, [1, 2, 4, 3]), (4, [1, 2, 4, 3, 5])],
)
def test_a_cut_by_hand(budget, tokens):
    tree = from_paths(1, [[2, 3], [4], [2, 5]])  # nodes 1 | 2 4 | 3 5
    tree = replace(tree, scores=np.array([1, 0.9, 0.3, 0.5, 0.2], np.float32))
    assert cut(tree, budget).tokens.tolist() == tokens


@given(scored_trees(), st.integers(0, 30))
def test_the_strongest_nodes_are_those_of_the_cut_where_scores_fall(tree, budget):
    tree = falling(tree)
    smaller = strongest(tree, budget)
    assert_sound(smaller)
    found, expected = (np.sort(each.scores[1:]) for each in (smaller, cut(tree, budget)))
    np.testing.assert_array_equal(found[found > 0], expected[expected > 0])
    assert (found > 0).all() or smaller is tree


@given(scored_trees(), st.sets(st.integers(0, 5)))
def test_only_branches_that_start_with_the_tokens_stay(tree, tokens):
    smaller = starting_with(tree, tokens)
    assert_sound(smaller)
    kept = {path_of(tree, i) for i in range(len(tree))}
    expected = {path for path in kept if not path or path[0] in tokens}
    assert {path_of(smaller, i) for i in range(len(smaller))} == expected


def test_equal_scores_are_taken_in_the_order_of_nodes():
    tree = from_paths(1, [[2, 3], [4, 5], [6]])
    assert best_first(tree) == [0, 1, 2, 3, 4, 5]


def test_the_drafters_distributions_follow_their_nodes():
    probs = torch.arange(8.0).reshape(4, 2)
    tree = chain([5, 6, 7, 8], "model", probs)
    assert torch.equal(keep(tree, [0, 1]).probs, probs[:2])


@given(scored_trees(), st.sets(st.integers(0, 5)))
def test_nodes_of_a_token_go_with_all_below_them(tree, tokens):
    left = without(tree, tokens)
    assert_sound(left)
    kept = [path_of(tree, i) for i in range(len(tree))]
    kept = [path for path in kept if tokens.isdisjoint(path)]
    assert sorted(path_of(left, i) for i in range(len(left))) == sorted(kept)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_the_strongest_nodes_are_those_of_a_stable_sort(count):
    random = np.random.default_rng(count)
    for scores in (random.random(30), random.integers(0, 4, 30) / 4):
        scores[0] = 1.0
        order = [int(node) for node in np.argsort(-scores, kind="stable") if node]
        kept = [node for node in order if scores[node] > 0][:count]
        assert strongest_nodes(scores, count).tolist() == sorted([0, *kept])
