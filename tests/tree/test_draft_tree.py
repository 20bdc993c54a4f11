"""The tree's arrays against recursive definitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graft.tree.draft_tree import DraftTree, chain, from_paths, in_level_order, root_only

ROOT = 7
paths = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12)


def path_of(tree: DraftTree, node: int) -> tuple[int, ...]:
    """Tokens from below the root to the node."""
    if node == 0:
        return ()
    return (*path_of(tree, int(tree.parents[node])), int(tree.tokens[node]))


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    return [path_of(tree, i) for i in range(len(tree))]


def assert_sound(tree: DraftTree) -> None:
    """Root first, level order, parents before children, siblings distinct."""
    assert tree.parents[0] == -1
    assert all(0 <= tree.parents[i] < i for i in range(1, len(tree)))
    assert all(np.diff(tree.depths) >= 0)
    assert len(set(paths_of(tree))) == len(tree)
    assert tree.tokens.dtype == np.int64
    assert tree.parents.dtype == np.int32
    assert tree.scores.dtype == np.float32
    assert tree.sources.dtype == np.int16


@given(paths)
def test_from_paths_holds_every_prefix_of_every_path_and_nothing_else(given_paths):
    tree = from_paths(ROOT, given_paths)
    assert_sound(tree)
    assert tree.tokens[0] == ROOT
    prefixes = {tuple(path[:n]) for path in given_paths for n in range(len(path) + 1)}
    assert set(paths_of(tree)) == prefixes | {()}


@given(paths)
def test_depths_are_path_lengths(given_paths):
    tree = from_paths(ROOT, given_paths)
    assert tree.depths.tolist() == [len(path) for path in paths_of(tree)]


@given(paths)
def test_node_attends_to_itself_and_its_ancestors_only(given_paths):
    tree = from_paths(ROOT, given_paths)
    known = paths_of(tree)
    expected = [[mine[: len(other)] == other for other in known] for mine in known]
    ancestors = tree.ancestors()
    assert ancestors.tolist() == np.array(expected).astype(int).tolist()
    assert (ancestors.sum(1) == tree.depths + 1).all()
    assert ancestors[:, 0].all()


@given(paths)
def test_children_lead_to_the_nodes_below(given_paths):
    tree = from_paths(ROOT, given_paths)
    children = tree.children
    assert sum(map(len, children)) == len(tree) - 1
    for parent, below in enumerate(children):
        for token, node in below.items():
            assert (tree.parents[node], tree.tokens[node]) == (parent, token)


@given(paths, st.randoms(use_true_random=False))
def test_level_order_only_renumbers(given_paths, random):
    tree = from_paths(ROOT, given_paths)
    depth_first = sorted(range(1, len(tree)), key=lambda i: path_of(tree, i))
    order = np.array([0, *depth_first])
    place = np.argsort(order)
    scores = np.array([random.random() for _ in order], np.float32)
    again = in_level_order(
        tree.tokens[order],
        np.array([-1, *place[tree.parents[order[1:]]]]),
        scores,
        np.arange(len(order)) % 2,
        ("a", "b"),
    )
    assert_sound(again)
    before = {path_of(tree, node): (scores[i], i % 2) for i, node in enumerate(order)}
    after = {path_of(again, i): (again.scores[i], again.sources[i]) for i in range(len(again))}
    assert before == after


def test_a_chain_is_a_tree_of_width_one():
    tree = chain([5, 3, 3, 9], "copy")
    assert_sound(tree)
    assert tree.depths.tolist() == [0, 1, 2, 3]
    assert tree.ancestors().tolist() == np.tri(4, dtype=int).tolist()
    assert [tree.source(i) for i in range(4)] == ["copy"] * 4


def test_the_empty_draft_is_the_root_alone():
    tree = root_only(5)
    assert_sound(tree)
    assert (len(tree), tree.tokens.tolist(), tree.scores.tolist()) == (1, [5], [1.0])
    assert tree.children == [{}]


def test_a_tree_by_hand():
    tree = from_paths(1, [[2, 3], [4], [2, 5]], "lookup")
    assert tree.tokens.tolist() == [1, 2, 4, 3, 5]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1]
    assert tree.children == [{2: 1, 4: 2}, {3: 3, 5: 4}, {}, {}, {}]
    assert tree.ancestors()[4].tolist() == [1, 1, 0, 0, 1]
    assert tree.source(3) == "lookup"
