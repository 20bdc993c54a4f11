"""The Triton kernel against brute force: interpreted here, compiled on a GPU (tests/gpu)."""

import heapq
from itertools import product

import numpy as np
import pytest
import torch
from daily import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_steps import SIZE, Step, brute_force, lay_out, random_step, random_tree

from graft.kernels.tree_plan import (
    COLUMNS,
    FEW_ROWS,
    KEY,
    KEYS,
    MIN_KEYS,
    PART,
    ROW,
    ROWS,
    TREE,
    plan_tree,
    tile_of,
)
from graft.tree.draft_tree import chain, in_level_order

pytest.importorskip("triton", reason="Triton is not installed")
from graft.kernels.tree_attention_triton import (  # noqa: E402
    PlacedPlan,
    Tiles,
    attend,
    place,
    tree_attention,
)

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


@pytest.mark.parametrize("context", [0, 1, 31, 32, 33, 255, 256, 257, 600, 1100])
def test_tree_at_every_split_boundary(context):
    rng = np.random.default_rng(context)
    layout = lay_out([([context], random_tree(13, rng))])
    assert_agrees(random_step(layout, 2, 1, rng))


def test_long_context_is_split_and_merged():
    rng = np.random.default_rng(1)
    step = random_step(lay_out([([1100], random_tree(5, rng))]), 2, 1, rng)
    plan = place(step.layout, 2, torch.zeros(1, 1, SIZE))
    assert plan.max_parts > 2
    assert_agrees(step)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (5, 1), (14, 2)])
def test_any_grouping_of_heads(heads, kv_heads):
    rng = np.random.default_rng(heads)
    layout = lay_out([([37], random_tree(9, rng)), ([300], random_tree(5, rng))])
    assert_agrees(random_step(layout, heads, kv_heads, rng))


@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_any_head_size(size, dtype):
    rng = np.random.default_rng(size)
    step = random_step(lay_out([([70], random_tree(9, rng))]), 2, 1, rng, size)
    assert_agrees(step, 3e-5 if dtype == torch.float32 else 8e-3, dtype)


@pytest.mark.parametrize("nodes", [63, 64, 65, 130])
def test_trees_of_more_than_64_nodes(nodes):
    rng = np.random.default_rng(nodes)
    layout = lay_out([([100], random_tree(nodes, rng)), ([3], chain(range(70)))])
    assert_agrees(random_step(layout, 1, 1, rng))


def test_a_star_and_a_chain_across_tiles():
    rng = np.random.default_rng(2)
    parents = np.array([-1] + [0] * 89)
    star = in_level_order(np.arange(90), parents, np.ones(90), np.zeros(90), ("",))
    assert_agrees(random_step(lay_out([([20], star), ([40], chain(range(150)))]), 2, 1, rng))


@pytest.mark.parametrize(
    ("context", "window"),
    daily(product([0, 255, 520], [1, 8, 100, 300]), (0, 8), (255, 1), (255, 300), (520, 100)),
)
def test_windows_count_positions_not_rows(context, window):
    rng = np.random.default_rng(context + window)
    tree = random_tree(20, rng)
    assert len(set(tree.depths)) < len(tree)  # siblings share a position
    layout = lay_out([([context], tree), ([9, context], chain(range(6)))])
    assert_agrees(random_step(layout, 2, 1, rng), window=window)


@pytest.mark.parametrize(
    ("window", "softcap", "context"),
    daily(
        product([None, 30], [None, 2.0], [0, 700]),
        (None, None, 0),
        (None, 2.0, 700),
        (30, None, 700),
    ),
)
def test_softcap_and_sinks(window, softcap, context):
    rng = np.random.default_rng(5)
    layout = lay_out([([context], random_tree(10, rng)), ([3], random_tree(3, rng))])
    step = random_step(layout, 4, 2, rng)
    assert_agrees(step, window=window, softcap=softcap, sinks=rng.standard_normal(4))


def test_shared_prefix_is_loaded_once():
    rng = np.random.default_rng(3)
    trees = [random_tree(n, rng) for n in (7, 1, 12)]
    layout = lay_out([([600, 5, 10 + b], tree) for b, tree in enumerate(trees)], shared=2)
    step = random_step(layout, 2, 1, rng)
    tasks = place(layout, 2, torch.zeros(1, 1, SIZE)).tasks
    start = layout.segments[0][0][0]
    first = tasks[(tasks[:, KEY] == start).nonzero()[:, 0]]
    assert int(first[:, ROWS].sum()) == 2 * len(layout.rows)  # all rows, none twice
    assert_agrees(step)
    assert_agrees(step, window=50)


@pytest.mark.parametrize(
    ("lengths", "window"),
    daily(product([[4, 50, 0], [16, 600, 3]], [None, 60]), ([4, 50, 0], None), ([16, 600, 3], 60)),
)
def test_selected_rows_keep_their_positions(lengths, window):
    rng = np.random.default_rng(len(lengths))
    layout = lay_out(
        [(lengths, random_tree(7, rng)), (lengths, chain(range(3)))], gaps=[0, 1000, 0]
    )
    assert_agrees(random_step(layout, 4, 2, rng), window=window)


def test_padding_changes_nothing_and_is_not_written():
    rng = np.random.default_rng(4)
    step = random_step(lay_out([([500], random_tree(5, rng))]), 2, 1, rng)
    plan = place(step.layout, 2, torch.zeros(1, 1, SIZE))
    padded = PlacedPlan(
        plan.tile,
        torch.cat([plan.tasks, torch.zeros(7, COLUMNS, dtype=torch.int32)]),
        torch.cat([plan.parts, torch.zeros(3, dtype=torch.int32)]),
        torch.cat([plan.bits, torch.zeros(3, 1, dtype=torch.int64)]),
        torch.cat([plan.positions, torch.zeros(3, dtype=torch.int64)]),
        plan.max_parts + 4,
    )
    query, keys, values = (torch.from_numpy(x) for x in (step.query, step.keys, step.values))
    more = torch.cat([query, torch.full((3, 2, SIZE), float("nan"))])
    alone = attend(query, keys, values, plan, scale=0.3)
    assert torch.equal(attend(more, keys, values, padded, scale=0.3)[:5], alone)


@pytest.mark.parametrize("tiles", [Tiles(16, 4, 2, 1), Tiles(64, 4, 2, 1)])
def test_tiling_does_not_change_results(tiles):
    rng = np.random.default_rng(6)
    step = random_step(lay_out([([450], random_tree(9, rng))]), 2, 1, rng)
    query, keys, values = (torch.from_numpy(x) for x in (step.query, step.keys, step.values))
    result = attend(query, keys, values, place(step.layout, 2, keys), scale=0.3, tiles=tiles)
    np.testing.assert_allclose(result.numpy(), brute_force(step), atol=3e-6)


@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(
        st.tuples(st.lists(st.integers(0, 3000), min_size=1, max_size=3), st.integers(1, 90)),
        min_size=1,
        max_size=5,
    ),
    shared=st.integers(0, 2),
    group=st.integers(1, 7),
    tasks=st.integers(1, 70),
    tiles=st.sampled_from([(16,), (16, 64), (16, 64, 128)]),
    seed=st.integers(0, 1000),
)
def test_every_row_sees_every_key_once(sequences, shared, group, tasks, tiles, seed):
    """The plan, by brute force: which row loads which keys as which part."""
    rng = np.random.default_rng(seed)
    shared = min(shared, min(len(lengths) for lengths, _ in sequences) - 1)
    common = sequences[0][0][:shared]
    layout = lay_out(
        [(common + lengths[shared:], random_tree(n, rng)) for lengths, n in sequences], shared
    )
    plan = plan_tree(layout, group=group, tile=tile_of(layout, group, tiles), tasks=tasks)
    for b, segments in enumerate(layout.segments):
        first, last = layout.first_node[b : b + 2]
        expected = np.concatenate([row + np.arange(count) for row, count in segments])
        for row in (first * group, last * group - 1):
            mine = [t for t in plan.tasks if t[ROW] <= row < t[ROW] + t[ROWS]]
            keys = [key for t in mine for key in range(t[KEY], t[KEY] + t[KEYS])]
            assert sorted(keys) == sorted(expected.tolist())
            assert sorted(t[PART] for t in mine) == list(range(plan.parts[row // group]))
            assert sorted(t[TREE] for t in mine if t[TREE]) == [last - first]
    turns = 2 if plan.tile <= FEW_ROWS else 1
    assert len(plan.tasks) <= turns * tasks + sum(
        len(segments) * -(-int(np.diff(layout.first_node)[b]) * group // plan.tile)
        for b, segments in enumerate(layout.segments)
    )


OVERHEAD = 128  # keys that could be read in the time that a task takes besides reading


def time_taken(plan, places):
    """In keys, if so many tasks run at a time and the next begins where one ends."""
    free = [0] * places
    for task in plan.tasks:
        heapq.heappushpop(free, free[0] + int(task[KEYS]) + OVERHEAD)
    return max(free)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.lists(st.integers(1, 40_000), min_size=1, max_size=2), min_size=1, max_size=32
    ),
    places=st.sampled_from([16, 44, 66, 132]),
)
def test_tasks_are_balanced(lengths, places):
    """A task too many would double it."""
    layout = lay_out([(each, chain([5])) for each in lengths])
    plan = plan_tree(layout, group=6, tile=16, tasks=places)
    even = sum(map(sum, lengths)) / places
    assert time_taken(plan, places) <= 1.5 * even + 2 * (MIN_KEYS + OVERHEAD)


@pytest.mark.parametrize("own", [0, 300])
@pytest.mark.parametrize(
    ("context", "tile", "pieces"), [(32_768, 64, 4), (32_768, 16, 8), (12_288, 16, 4)]
)
def test_sixteen_contexts_take_one_wave_and_very_long_ones_two(context, own, tile, pieces):
    """Two where tasks do little but read. What was written behind a cached prompt, besides."""
    lengths = [context, own] if own else [context]
    plan = plan_tree(lay_out([(lengths, chain([5]))] * 16), group=6, tile=tile, tasks=66)
    assert plan.parts.tolist() == [pieces + (own > 0)] * 16
    assert (np.diff(plan.tasks[:, KEYS]) <= 0).all()  # the long ones first


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(257, 2048), context=st.integers(0, 40_000), places=st.integers(16, 132))
def test_prefill_chunks_have_few_partial_results(nodes, context, places):
    """At most as many as an even share of keys gives: graphs have memory for few."""
    layout = lay_out([([context], chain([5] * nodes))])
    plan = plan_tree(layout, group=6, tile=128, tasks=places)
    tiles = -(-nodes * 6 // 128)
    even = max(MIN_KEYS, tiles * context / places)
    assert plan.parts.max() <= max(1, -(-context // even))
