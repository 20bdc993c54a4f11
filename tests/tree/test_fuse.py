"""Union of trees: all paths of both, each once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_draft_tree import ROOT, assert_sound, path_of, paths, paths_of

from graft.tree.draft_tree import DraftTree, chain, from_paths, in_level_order, root_only
from graft.tree.fuse import union
from graft.tree.prune import shallow


@st.composite
def scored_trees(draw, source: str = "a") -> DraftTree:
    tree = from_paths(ROOT, draw(paths), source)
    numbers = st.floats(0, 1, width=32)
    scores = draw(st.lists(numbers, min_size=len(tree), max_size=len(tree)))
    return replace(tree, scores=np.array([1, *scores[1:]], np.float32))


def scores_of(tree: DraftTree) -> dict[tuple[int, ...], float]:
    return {path_of(tree, i): float(tree.scores[i]) for i in range(len(tree))}


def as_set(tree: DraftTree) -> set:
    """What the tree says, whatever the order of its nodes."""
    return {(path_of(tree, i), float(tree.scores[i]), tree.source(i)) for i in range(len(tree))}


@given(scored_trees(), scored_trees("b"))
def test_every_path_of_both_is_kept_once_and_no_other(first, second):
    joined = union(first, second)
    assert_sound(joined)
    assert set(paths_of(joined)) == set(paths_of(first)) | set(paths_of(second))


@given(scored_trees(), scored_trees("b"))
def test_a_common_node_has_the_better_score_and_both_sources(first, second):
    one, other = scores_of(first), scores_of(second)
    for path, score, source in as_set(union(first, second)):
        assert score == max(one.get(path, 0), other.get(path, 0))
        if path:
            assert source == ("both" if path in one and path in other else "ab"[path in other])


def test_a_node_that_one_tree_leaves_unnamed_belongs_to_the_other():
    named, unnamed = from_paths(ROOT, [[1, 2], [3]], "a"), from_paths(ROOT, [[1, 4]], "")
    for joined in (union(named, unnamed), union(unnamed, named)):
        sources = {path_of(joined, i): joined.source(i) for i in range(1, len(joined))}
        assert sources == {(1,): "a", (3,): "a", (1, 2): "a", (1, 4): ""}


@given(scored_trees(), scored_trees("b"), scored_trees("c"))
def test_sources_do_not_depend_on_the_order_of_joining(first, second, third):
    left = as_set(union(union(first, second), third))
    right = as_set(union(first, union(second, third)))
    assert {each for each in left if each[0]} == {each for each in right if each[0]}


@given(scored_trees())
def test_joining_a_tree_with_itself_changes_nothing(tree):
    joined = union(tree, tree)
    for name in ("tokens", "parents", "scores", "sources"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(tree, name))
    assert joined.source_names == tree.source_names


@given(scored_trees(), scored_trees())
def test_the_order_of_two_trees_does_not_matter(first, second):
    assert as_set(union(first, second)) == as_set(union(second, first))


@given(scored_trees(), scored_trees(), scored_trees())
def test_the_order_of_joining_three_does_not_matter(first, second, third):
    left = union(union(first, second), third)
    assert as_set(left) == as_set(union(first, union(second, third)))


@given(scored_trees())
def test_an_empty_draft_adds_nothing(tree):
    assert as_set(union(tree, root_only(ROOT))) == as_set(tree)
    assert scores_of(union(root_only(ROOT), tree)) == scores_of(tree)


def test_union_below_a_node_multiplies_scores():
    tree = union(from_paths(1, [[2], [3]], "a"), root_only(1))
    tree.scores[:] = [1, 0.5, 0.25]
    found = union(tree, from_paths(3, [[4, 5], [6]], "b"), at=2)
    assert found.paths() == [[], [2], [3], [3, 4], [3, 6], [3, 4, 5]]
    assert found.scores.tolist() == [1, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert [found.source(node) for node in range(1, 6)] == ["a", "a", "b", "b", "b"]


def test_trees_with_different_roots_are_refused():
    with pytest.raises(ValueError, match="different roots"):
        union(root_only(1), root_only(2))


def test_where_nodes_were_copied_from_survives_union_and_cut():
    ones = np.ones(3)
    copied = in_level_order(
        np.array([1, 2, 3]), np.array([-1, 0, 1]), ones, ones, ("", "a"), np.array([-1, 7, 8])
    )
    drafted = chain([1, 2, 4], "b")
    for tree in (union(copied, drafted), union(drafted, copied)):
        places = {int(token): tree.place(node) for node, token in enumerate(tree.tokens)}
        assert places == {1: -1, 2: 7, 3: 8, 4: -1}
        assert shallow(tree, 1).all_places() == [-1, 7]
