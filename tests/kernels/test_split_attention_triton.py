"""Attention in splits of fixed borders: against brute force, and bit for bit across steps.

Interpreted here, compiled on a GPU (tests/gpu).
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from daily import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_steps import SIZE, Step, brute_force, lay_out, random_step, random_tree

from graft.kernels.split_plan import (
    BLOCK,
    DIRECT_NODES,
    END,
    EXTENT,
    EXTENTS,
    FIRST,
    LAST,
    MERGED,
    NODE_COLUMNS,
    NUMBER,
    OPEN,
    ROW,
    ROWS,
    SPLITS,
    START,
    TASK_COLUMNS,
    border_before,
    max_split,
    plan_splits,
    split_blocks,
)
from graft.kernels.tree_layout import TreeLayout
from graft.tree.draft_tree import DraftTree, chain, from_paths, in_level_order

pytest.importorskip("triton", reason="Triton is not installed")
from triton.runtime import interpreter  # noqa: E402

from graft.kernels import split_attention_triton  # noqa: E402
from graft.kernels.split_attention_triton import attend, place, tree_attention  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("compiled there: pytest -m gpu", allow_module_level=True)


def by_triton(step: Step, *, scale=0.3, dtype=torch.float32, **options) -> np.ndarray:
    tensors = [torch.from_numpy(x).to(dtype) for x in (step.query, step.keys, step.values)]
    if options.get("sinks") is not None:
        options["sinks"] = torch.from_numpy(options["sinks"]).float()
    return tree_attention(*tensors, step.layout, scale=scale, **options).float().numpy()


def assert_agrees(step: Step, tolerance: float = 3e-6, dtype=torch.float32, **options) -> None:
    rounded = Step(
        step.layout,
        *(
            torch.from_numpy(x).to(dtype).float().numpy()
            for x in (step.query, step.keys, step.values)
        ),
    )
    expected = brute_force(rounded, **options)
    np.testing.assert_allclose(by_triton(rounded, dtype=dtype, **options), expected, atol=tolerance)


@pytest.mark.parametrize("context", [0, 1, 63, 64, 255, 319, 320, 449, 1100, 1152])
def test_tree_at_borders_of_blocks_and_splits(context):
    rng = np.random.default_rng(context)
    layout = lay_out([([context], random_tree(6, rng))])
    assert_agrees(random_step(layout, 2, 1, rng))


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1), (5, 1), (7, 1)])
def test_any_grouping_of_heads(heads, kv_heads):
    rng = np.random.default_rng(heads)
    layout = lay_out([([37], random_tree(5, rng)), ([330], random_tree(3, rng))])
    assert_agrees(random_step(layout, heads, kv_heads, rng))


@pytest.mark.parametrize("size", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_any_head_size(size, dtype):
    rng = np.random.default_rng(size)
    step = random_step(lay_out([([350], random_tree(5, rng))]), 2, 1, rng, size)
    assert_agrees(step, 3e-5 if dtype == torch.float32 else 8e-3, dtype)


def test_trees_and_chains_of_many_nodes():
    rng = np.random.default_rng(1)
    chains = [([30], chain(range(nodes))) for nodes in (DIRECT_NODES - 1, DIRECT_NODES + 2)]
    layout = lay_out([([140], random_tree(20, rng)), *chains])
    assert_agrees(random_step(layout, 1, 1, rng))


def test_a_star_and_a_chain_across_tiles():
    rng = np.random.default_rng(2)
    parents = np.array([-1] + [0] * 19)
    star = in_level_order(np.arange(20), parents, np.ones(20), np.zeros(20), ("",))
    assert_agrees(random_step(lay_out([([140], star), ([40], chain(range(70)))]), 2, 1, rng))


@pytest.mark.parametrize(
    ("context", "window"),
    daily(product([0, 255, 520], [1, 8, 100, 300]), (0, 8), (255, 1), (520, 300), (520, 100)),
)
def test_windows_count_positions_not_rows(context, window):
    rng = np.random.default_rng(context + window)
    tree = random_tree(9, rng)
    assert len(set(tree.depths)) < len(tree)  # siblings share a position
    layout = lay_out([([context], tree), ([9, context], chain(range(3))), ([30], chain(range(64)))])
    assert_agrees(random_step(layout, 2, 1, rng), window=window)


@pytest.mark.parametrize(
    ("window", "softcap", "context"),
    daily(
        product([None, 30], [None, 2.0], [0, 400]),
        (None, None, 0),
        (None, 2.0, 400),
        (30, None, 400),
    ),
)
def test_softcap_and_sinks(window, softcap, context):
    rng = np.random.default_rng(5)
    layout = lay_out([([context], random_tree(4, rng)), ([3], chain(range(64)))])
    step = random_step(layout, 2, 1, rng)
    assert_agrees(step, window=window, softcap=softcap, sinks=rng.standard_normal(2))


def test_shared_prefix_is_loaded_once():
    rng = np.random.default_rng(3)
    trees = [random_tree(n, rng) for n in (4, 1, 3)]
    layout = lay_out([([400, 5, 10 + b], tree) for b, tree in enumerate(trees)], shared=2)
    step = random_step(layout, 2, 1, rng)
    tasks = place(layout, 2, torch.zeros(1, 1, SIZE)).tasks
    first = tasks[tasks[:, FIRST] == 0]
    assert int(first[:, ROWS].sum()) == 2 * len(layout.rows)  # all rows, none twice
    assert_agrees(step)
    assert_agrees(step, window=50)


@pytest.mark.parametrize(
    ("lengths", "window"),
    daily(product([[4, 50, 0], [16, 200, 3]], [None, 60]), ([4, 50, 0], None), ([16, 200, 3], 60)),
)
def test_selected_rows_keep_their_positions(lengths, window):
    rng = np.random.default_rng(len(lengths))
    layout = lay_out(
        [(lengths, random_tree(5, rng)), (lengths, chain(range(2)))], gaps=[0, 1000, 0]
    )
    assert_agrees(random_step(layout, 2, 1, rng), window=window)


@pytest.mark.parametrize("has_paths", [True, False])
def test_padding_changes_nothing_and_is_not_written(has_paths):
    rng = np.random.default_rng(4)
    tree = random_tree(5, rng) if has_paths else chain(range(5))
    step = random_step(lay_out([([330], tree)]), 2, 1, rng)
    plan = place(step.layout, 2, torch.zeros(1, 1, SIZE))
    padding = torch.zeros(3, NODE_COLUMNS, dtype=torch.int32)
    padding[:, SPLITS] = -1
    padded = replace(
        plan,
        tasks=torch.cat([plan.tasks, torch.zeros(7, TASK_COLUMNS, dtype=torch.int32)]),
        nodes=torch.cat([plan.nodes, padding]),
        paths=torch.cat([plan.paths, torch.zeros(3, plan.paths.shape[1], dtype=torch.int32)]),
        positions=torch.cat([plan.positions, torch.zeros(3, dtype=torch.int64)]),
        parts=plan.parts + 4,
    )
    query, keys, values = (torch.from_numpy(x) for x in (step.query, step.keys, step.values))
    more = torch.cat([query, torch.full((3, 2, SIZE), float("nan"))])
    alone = attend(query, keys, values, plan, scale=0.3)
    assert torch.equal(attend(more, keys, values, padded, scale=0.3)[:5], alone)


# The same bits in any step


@pytest.fixture
def sequential_dots(monkeypatch):
    """As on a GPU in 16 bits, where an element of a product follows from its row and column alone,
    in tiles of any size; numpy's sums depend on the shape."""
    monkeypatch.setattr(split_attention_triton, "tiles_of", lambda _: (16, 64))

    def create_dot(_, a, b, d, *_options):
        products = (a.data[:, :, None] * b.data[None]).astype(d.data.dtype)
        terms = np.concatenate([d.data[:, None], products], axis=1)
        total = np.add.accumulate(terms, axis=1)[:, -1].copy()
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


LENGTH, HEADS, KV_HEADS = 470, 2, 1


class Path:
    """Queries, keys and values of one path, and the result of its nodes in any step."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        draw = lambda heads: rng.standard_normal((LENGTH, heads, SIZE)).astype(np.float32)  # noqa: E731
        self.query, self.keys, self.values = draw(HEADS), draw(KV_HEADS), draw(KV_HEADS)
        self.rng = rng

    def nodes_of(self, sequences: list[tuple[list[int], DraftTree, dict[int, int]]], **options):
        """Results {index: [H, D]} of the nodes that are on the path: each sequence is the lengths
        of its segments, a tree, and which of its nodes have which index."""
        layout = lay_out([(lengths, tree) for lengths, tree, _ in sequences], **options)
        step = random_step(layout, HEADS, KV_HEADS, self.rng)
        for b, (_, _, indices) in enumerate(sequences):
            at = 0
            for row, count in layout.segments[b]:
                step.keys[:, row : row + count] = self.keys[at : at + count].transpose(1, 0, 2)
                step.values[:, row : row + count] = self.values[at : at + count].transpose(1, 0, 2)
                at += count
            for node, index in indices.items():
                place = layout.first_node[b] + node
                step.query[place] = self.query[index]
                step.keys[:, layout.rows[place]] = self.keys[index]
                step.values[:, layout.rows[place]] = self.values[index]
        found = by_triton(step)
        return [
            {i: found[layout.first_node[b] + n] for n, i in indices.items()}
            for b, (_, _, indices) in enumerate(sequences)
        ]


def stretch(first: int, count: int) -> tuple[DraftTree, dict[int, int]]:
    """A chain of the path's nodes."""
    return chain(range(count)), {n: first + n for n in range(count)}


def branch(first: int) -> tuple[DraftTree, dict[int, int]]:
    """A tree with the path's nodes on a branch that is not the first."""
    tree = from_paths(1, [[2, 3, 4], [7, 8, 9], [7, 5]])
    (last,) = np.flatnonzero(tree.tokens == 9)  # noqa: PLR2004
    nodes = np.flatnonzero(tree.ancestors()[last])
    return tree, {int(n): first + d for d, n in enumerate(nodes)}


@pytest.mark.usefixtures("sequential_dots")
def test_a_node_has_the_same_bits_in_any_step(monkeypatch):
    path = Path()
    (expected,) = path.nodes_of([([0], *stretch(0, LENGTH))])  # the whole prompt at once

    def assert_same(found: list[dict[int, np.ndarray]]) -> None:
        for each in found:
            assert each
            for index, result in each.items():
                np.testing.assert_array_equal(result, expected[index], strict=True)

    for context, count in [(200, 100), (331, 64), (378, 9), (465, 5)]:  # in chunks
        assert_same(path.nodes_of([([context], *stretch(context, count))]))
    for index in [0, 63, 64, 319, 320, 383, 384, 469]:  # token by token
        assert_same(path.nodes_of([([index], *stretch(index, 1))]))
    for index in [64, 320, 469]:  # in segments
        assert_same(path.nodes_of([([index // 3, index - index // 3], *stretch(index, 1))]))
    for context in (3, 450):  # in trees
        assert_same(path.nodes_of([([context], *branch(context))]))
    for context in (62, 382):  # in a batch
        batch = [([40], *stretch(40, 2)), ([context], *branch(context))]
        assert_same(path.nodes_of([*batch, ([300], *stretch(300, 66))]))
    shared = [([400, 7], *stretch(407, 2)), ([400, 30], *stretch(430, 1))]
    assert_same(path.nodes_of(shared, shared=1))
    for tasks in (1, 3, 50):  # however many programs there are
        monkeypatch.setattr(split_attention_triton, "tasks_wanted", lambda *_, n=tasks: n)
        assert_same(path.nodes_of([([440], *stretch(440, 2)), ([469], *stretch(469, 1))]))
    monkeypatch.setattr(split_attention_triton, "FOLD", 1)  # merged by a kernel of its own
    assert_same(path.nodes_of([([440], *stretch(440, 2)), ([469], *stretch(469, 1))]))


# The plan


@pytest.mark.parametrize("longest", [4, 8, 32])
def test_splits_grow_with_their_index(longest):
    place, sizes = 0, []
    while place < 4096:
        sizes.append(split_blocks(place, longest))
        assert border_before(place, longest) == place
        assert border_before(place + sizes[-1] - 1, longest) == place
        place += sizes[-1]
    assert sizes == sorted(sizes)
    assert max(sizes) == longest


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(
        st.tuples(st.lists(st.integers(0, 9000), min_size=1, max_size=3), st.integers(1, 90)),
        min_size=1,
        max_size=5,
    ),
    shared=st.integers(0, 2),
    group=st.integers(1, 7),
    tasks=st.integers(1, 70),
    kv_heads=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_every_node_gets_every_block_once(sequences, shared, group, tasks, kv_heads, seed):  # noqa: PLR0913
    """The plan, by brute force: which blocks reach a node, in which order."""
    rng = np.random.default_rng(seed)
    shared = min(shared, min(len(lengths) for lengths, _ in sequences) - 1)
    common = sequences[0][0][:shared]
    layout = lay_out(
        [(common + lengths[shared:], random_tree(n, rng)) for lengths, n in sequences], shared
    )
    plan = plan_splits(layout, group=group, kv_heads=kv_heads, tiles=(16, 64), tasks=tasks)
    longest = max_split(kv_heads)
    for b in range(len(sequences)):
        for node in (layout.first_node[b], layout.first_node[b + 1] - 1):
            entry = next((each for each in plan.nodes if each[NUMBER] == node), None)
            mine, chunk = (
                table[
                    (table[:, ROW] <= node * group)
                    & (node * group < table[:, ROW] + table[:, ROWS])
                ]
                for table in (plan.tasks, plan.chunks)
            )
            assert len(chunk) == (entry is None)
            if entry is None:
                assert not len(mine)
                continue
            place = 0
            for part in range(plan.parts + 1):
                task = [t for t in mine if part in (t[MERGED], t[LAST])]
                if not task:
                    break
                ((first, end),) = {(int(t[FIRST]), int(t[END])) for t in task}
                if part == task[0][MERGED]:
                    assert first == 0
                    place = border_before(end, longest)
                elif part == entry[OPEN]:
                    assert border_before(end, longest) == place < end
                    place = end
                else:
                    assert (first, end - first) == (place, split_blocks(first, longest))
                    place = end
            assert place == entry[START]
            assert place in (0, sum(count for _, count in layout.segments[b]) // BLOCK)


@given(
    lengths=st.lists(st.integers(0, 900), min_size=1, max_size=6),
    tasks=st.integers(1, 70),
    kv_heads=st.integers(1, 8),
)
def test_a_tasks_extents_are_those_of_its_blocks(lengths, tasks, kv_heads):
    layout = lay_out([(lengths, chain([5]))])
    plan = plan_splits(layout, group=1, kv_heads=kv_heads, tiles=(16,), tasks=tasks)
    rows = np.concatenate([start + np.arange(count) for start, count in layout.segments[0]])
    for task in plan.tasks:
        extents = plan.extents[task[EXTENT] : task[EXTENT] + task[EXTENTS]]
        keys = np.arange(task[FIRST] * BLOCK, task[END] * BLOCK)
        own = np.maximum(np.searchsorted(extents[:, 0], keys, side="right") - 1, 0)
        assert (keys + extents[own, 1] == rows[keys]).all()
        assert len(set(own)) == len(extents)  # and no others


def test_a_cached_prefix_is_in_one_place_for_its_tasks():
    layout = lay_out([([31_744, 200], chain([5]))])
    plan = plan_splits(layout, group=1, kv_heads=32, tiles=(16,), tasks=4)
    assert len(plan.extents) == 2
    assert (plan.tasks[:, EXTENTS] > 1).sum() <= 1


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
@pytest.mark.parametrize("context", [500, 2000, 8000, 32_000])
def test_tasks_are_balanced(context, batch):
    """No task is much longer than an even share, except where a split is."""
    layout = lay_out([([context], chain([5]))] * batch)
    plan = plan_splits(layout, group=4, kv_heads=8, tiles=(16,), tasks=33)
    lengths = plan.tasks[:, END] - plan.tasks[:, FIRST]
    even = batch * (context // BLOCK) / 33
    assert lengths.max() <= max(1.3 * even, max_split(8))
    assert len(plan.tasks) <= 33 or (np.diff(lengths) <= 0).all()  # long ones first


def test_layouts_are_not_changed():
    layout: TreeLayout = lay_out([([70], chain([1, 2]))])
    before = layout.first_node.copy(), layout.positions.copy()
    plan_splits(layout, group=2, kv_heads=1, tiles=(16,), tasks=4)
    assert (layout.first_node == before[0]).all()
    assert (layout.positions == before[1]).all()
