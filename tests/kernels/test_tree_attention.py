"""All tree attentions against a brute-force softmax in float64 written here.

The panels version promises more: in one segment a node's result has the same bits as if its path
had been decoded token by token.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_steps import SIZE, Step, brute_force, lay_out, random_step, random_tree

from graft.kernels.tree_attention_invariant import see
from graft.kernels.tree_attention_invariant import tree_attention as invariant_attention
from graft.kernels.tree_attention_panels import attend_split, merge_splits, plan_splits
from graft.kernels.tree_attention_torch import tree_attention
from graft.kernels.tree_layout import TreeLayout
from graft.models.storage import PanelStorage
from graft.tree.draft_tree import chain, in_level_order

CONTEXTS = [0, 1, 15, 16, 17, 240, 254, 255, 256, 257, 271, 510, 511, 512, 513, 767]


def by_torch(step: Step, *, scale=0.3, dtype=torch.float64, **options) -> np.ndarray:
    tensors = [torch.from_numpy(x).to(dtype) for x in (step.query, step.keys, step.values)]
    if options.get("sinks") is not None:
        options["sinks"] = torch.from_numpy(options["sinks"])
    return tree_attention(*tensors, step.layout, scale=scale, **options).numpy()


def by_invariant(step: Step, *, scale=0.3, group=2, **options) -> np.ndarray:
    tensors = [torch.from_numpy(x) for x in (step.query, step.keys, step.values)]
    if options.get("sinks") is not None:
        options["sinks"] = torch.from_numpy(options["sinks"])
    seen = see(step.layout, np.arange(len(step.query)), torch.device("cpu"), group)
    return invariant_attention(*tensors, seen, scale=scale, **options).numpy()


def by_panels(step: Step, *, scale=0.3, window=None, dtype=torch.float32) -> np.ndarray:
    nodes, heads, _ = step.query.shape
    kv_heads, rows, _ = step.keys.shape
    groups = heads // kv_heads
    storage = PanelStorage(1, kv_heads, SIZE, dtype)
    storage.resize(rows)
    content = torch.from_numpy(np.stack([step.keys, step.values])[:, None])
    storage.write(np.arange(rows), content)
    query = step.query.reshape(nodes, kv_heads, groups, SIZE).transpose(1, 0, 2, 3).copy()
    plan = plan_splits(step.layout)
    lead = (int(plan.blocks[:, 3].max()), kv_heads, nodes * groups)
    partial = [np.full(shape, np.nan, np.float32) for shape in (lead, lead, (*lead, SIZE))]
    result = np.empty((nodes, heads, SIZE), np.float32)
    mask = (step.layout.ancestors, step.layout.positions, np.int64(window or 0))
    for head in range(kv_heads):
        for block in plan.blocks:
            for split in range(block[3]):
                attend_split(
                    0, head, plan.tasks[block[2] + split], query, (storage.keys, storage.values),
                    mask, np.float32(scale), tuple(x[split] for x in partial),
                )  # fmt: skip
            merge_splits(head, block, tuple(partial), result)
    return result


def assert_agrees(step: Step, window: int | None = None) -> None:
    expected = brute_force(step, window=window)
    np.testing.assert_allclose(by_torch(step, window=window), expected, atol=1e-6)
    np.testing.assert_allclose(by_panels(step, window=window), expected, atol=3e-6)
    np.testing.assert_allclose(by_invariant(step, window=window), expected, atol=3e-6)


@pytest.mark.parametrize("context", CONTEXTS)
def test_tree_at_every_split_boundary(context):
    rng = np.random.default_rng(context)
    layout = lay_out([([context], random_tree(13, rng))])
    assert_agrees(random_step(layout, 2, 1, rng))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (5, 1), (9, 3)])
def test_any_grouping_of_heads(heads, kv_heads):
    rng = np.random.default_rng(heads)
    layout = lay_out([([37], random_tree(9, rng)), ([260], random_tree(5, rng))])
    assert_agrees(random_step(layout, heads, kv_heads, rng))


@pytest.mark.parametrize("nodes", [63, 64, 65, 130, 256])
def test_more_nodes_than_a_block_holds(nodes):
    rng = np.random.default_rng(nodes)
    layout = lay_out([([100], random_tree(nodes, rng)), ([3], chain(range(70)))])
    assert_agrees(random_step(layout, 2, 2, rng))


@pytest.mark.parametrize("context", [0, 250, 511])
def test_a_chain_across_splits_is_plain_causal_attention(context):
    rng = np.random.default_rng(context)
    assert_agrees(random_step(lay_out([([context], chain(range(300)))]), 2, 1, rng))


@pytest.mark.parametrize("prefix", [1, 15, 16, 100, 255, 256, 257, 300])
@pytest.mark.parametrize("own", [0, 1, 200, 400])
def test_shared_prefixes_are_visible_to_all_their_sequences(prefix, own):
    rng = np.random.default_rng(prefix + own)
    trees = [random_tree(n, rng) for n in (7, 1, 12)]
    sequences = [([prefix, 5, own + b], tree) for b, tree in enumerate(trees)]
    layout = lay_out(sequences, shared=2)
    assert [s[:2] for s in layout.segments] == [layout.segments[0][:2]] * 3
    assert_agrees(random_step(layout, 2, 1, rng))


@pytest.mark.parametrize("window", [None, 6, 60, 290])
@pytest.mark.parametrize("lengths", [[4, 50, 0], [16, 241, 3], [5, 30, 256, 1]])
def test_selected_rows_keep_their_positions(lengths, window):
    """Sinks, the latest rows and rows behind them, with positions left out between them."""
    rng = np.random.default_rng(len(lengths))
    trees = [random_tree(7, rng), chain(range(3))]
    gaps = [0, 1000, *[0] * (len(lengths) - 2)]
    layout = lay_out([(lengths, tree) for tree in trees], gaps=gaps)
    assert_agrees(random_step(layout, 4, 2, rng), window=window)


@pytest.mark.parametrize("nodes", [258, 400])
def test_very_wide_trees_fit_one_split(nodes):
    """More keys at the positions of one split than twice its size, behind an unaligned prefix."""
    rng = np.random.default_rng(nodes)
    parents = np.array([-1] + [0] * (nodes - 1))
    star = in_level_order(np.arange(nodes), parents, np.ones(nodes), np.zeros(nodes), ("",))
    assert_agrees(random_step(lay_out([([1, 508], star)]), 1, 1, rng))


@pytest.mark.parametrize("window", [1, 2, 8, 100, 256, 300])
@pytest.mark.parametrize("context", [0, 5, 255, 300, 520])
def test_windows_count_positions_not_rows(context, window):
    rng = np.random.default_rng(context + window)
    tree = random_tree(20, rng)
    assert len(set(tree.depths)) < len(tree)  # siblings share a position
    layout = lay_out([([context], tree), ([9, context], random_tree(6, rng))])
    assert_agrees(random_step(layout, 2, 1, rng), window)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_softcap_and_sinks_of_the_torch_kernels(window, softcap, with_sinks):
    rng = np.random.default_rng(5)
    sinks = rng.standard_normal(4) if with_sinks else None
    layout = lay_out([([50], random_tree(10, rng)), ([0], random_tree(3, rng))])
    step = random_step(layout, 4, 2, rng)
    options = {"window": window, "softcap": softcap, "sinks": sinks}
    expected = brute_force(step, **options)
    np.testing.assert_allclose(by_torch(step, **options), expected, atol=1e-6)
    np.testing.assert_allclose(by_invariant(step, **options), expected, atol=3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 0.05)])
def test_torch_kernels_in_the_models_dtype(dtype, tolerance):
    rng = np.random.default_rng(6)
    step = random_step(lay_out([([90], random_tree(10, rng))]), 4, 2, rng)
    tensors = [torch.from_numpy(x).to(dtype) for x in (step.query, step.keys, step.values)]
    result = tree_attention(*tensors, step.layout, scale=0.3)
    assert result.dtype == dtype
    np.testing.assert_allclose(result.float().numpy(), brute_force(step), atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(
        st.tuples(st.lists(st.integers(0, 280), min_size=1, max_size=3), st.integers(1, 24)),
        min_size=1,
        max_size=3,
    ),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 2),
    window=st.one_of(st.none(), st.integers(1, 300)),
    seed=st.integers(0, 1000),
)
def test_any_packing_of_sequences(sequences, groups, kv_heads, window, seed):
    rng = np.random.default_rng(seed)
    layout = lay_out([(lengths, random_tree(nodes, rng)) for lengths, nodes in sequences])
    assert_agrees(random_step(layout, groups * kv_heads, kv_heads, rng), window)


def decoded_alone(
    step: Step, context: int, node: int, window: int | None, dtype: torch.dtype = torch.float32
) -> np.ndarray:
    """The node's output when its ancestors were committed and it is the only node of its step."""
    start = step.layout.segments[0][0][0]
    path = np.flatnonzero(step.layout.ancestors[node])
    layout = lay_out([([context + len(path) - 1], chain([0]))])
    old = np.concatenate([start + np.arange(context), step.layout.rows[path]])
    new = layout.segments[0][0][0] + np.arange(len(old))
    rows = -(-(int(new[-1]) + 1) // 16) * 16
    keys, values = (
        np.zeros((x.shape[0], rows, SIZE), np.float32) for x in (step.keys, step.values)
    )
    keys[:, new], values[:, new] = step.keys[:, old], step.values[:, old]
    alone = Step(layout, step.query[[node]], keys, values)
    return by_panels(alone, window=window, dtype=dtype)[0]


@pytest.mark.parametrize("window", [None, 5, 256])
@pytest.mark.parametrize("context", [*CONTEXTS, 250, 251, 252, 253, 505])
def test_node_has_the_bits_of_its_path_decoded_alone(context, window):
    rng = np.random.default_rng(context)
    step = random_step(lay_out([([context], random_tree(24, rng))]), 3, 1, rng)
    together = by_panels(step, window=window)
    for node in range(24):
        alone = decoded_alone(step, context, node, window)
        np.testing.assert_array_equal(together[node], alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_keys_and_values_of_few_bits_are_widened(dtype):
    rng = np.random.default_rng(3)
    step = random_step(lay_out([([271], random_tree(24, rng))]), 3, 1, rng)
    keys, values = (torch.from_numpy(x).to(dtype).float().numpy() for x in (step.keys, step.values))
    together = by_panels(step, dtype=dtype)
    expected = by_panels(Step(step.layout, step.query, keys, values))
    np.testing.assert_array_equal(together, expected)
    for node in (0, 7, 23):
        alone = decoded_alone(step, 271, node, None, dtype)
        np.testing.assert_array_equal(together[node], alone)


@pytest.mark.parametrize("context", [0, 200, 255])
def test_long_prefill_has_the_bits_of_single_tokens(context):
    rng = np.random.default_rng(context)
    step = random_step(lay_out([([context], chain(range(300)))]), 2, 1, rng)
    together = by_panels(step)
    for node in [0, 1, 15, 16, 54, 55, 56, 57, 63, 64, 65, 255, 256, 257, 299]:
        np.testing.assert_array_equal(together[node], decoded_alone(step, context, node, None))


def test_neighbouring_sequences_do_not_change_a_bit():
    rng = np.random.default_rng(9)
    trees = [random_tree(n, rng) for n in (9, 70, 3)]
    layout = lay_out([([c], tree) for c, tree in zip((255, 30, 511), trees, strict=True)])
    step = random_step(layout, 4, 2, rng)
    together = by_panels(step)
    for b, tree in enumerate(trees):
        nodes = slice(layout.first_node[b], layout.first_node[b + 1])
        alone = TreeLayout(
            np.array([0, len(tree)]),
            [layout.segments[b]],
            layout.rows[nodes],
            layout.positions[nodes],
            layout.parents[nodes],
        )
        result = by_panels(Step(alone, step.query[nodes], step.keys, step.values))
        np.testing.assert_array_equal(together[nodes], result)


def test_nodes_that_do_not_follow_their_segment_are_refused():
    good = lay_out([([5], chain([1, 2]))])
    with pytest.raises(AssertionError, match="must follow"):
        TreeLayout(good.first_node, good.segments, good.rows + 1, good.positions, good.parents)
