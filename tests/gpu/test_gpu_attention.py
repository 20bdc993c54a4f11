"""The compiled attention kernel against its definition in float64: run with `pytest -m gpu`."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tree_steps import lay_out, random_tree

from graft.kernels.tree_attention_torch import tree_attention as by_definition
from graft.kernels.tree_layout import TreeLayout
from graft.tree.draft_tree import chain

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of the norm
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def error(
    layout: TreeLayout, shape: tuple[int, int, int], dtype: torch.dtype, seed: int, **options
) -> float:
    """How far the kernel is from float64 on fresh random numbers, its output poisoned before."""
    from graft.kernels.split_attention_triton import tree_attention

    heads, kv_heads, size = shape
    torch.manual_seed(seed)
    nodes, rows = len(layout.rows), int(layout.rows.max()) + 16
    query = torch.randn(nodes, heads, size, device="cuda", dtype=dtype)
    keys, values = torch.randn(2, kv_heads, rows, size, device="cuda", dtype=dtype)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(heads, device="cuda")
    poison = torch.full_like(query, float("nan"))  # freed: the kernel's output takes its place
    del poison
    result = tree_attention(query, keys, values, layout, scale=size**-0.5, **options).double()
    expected = by_definition(
        query.double(), keys.double(), values.double(), layout, scale=size**-0.5, **options
    )
    return float((result - expected).norm() / expected.norm())


@DTYPES
@pytest.mark.parametrize("shape", [(32, 8, 128), (9, 3, 64), (8, 1, 80), (4, 4, 96), (4, 2, 256)])
@pytest.mark.parametrize(("context", "nodes"), [(0, 7), (777, 1), (3000, 64)])
def test_every_shape_of_heads(dtype, shape, context, nodes):
    rng = np.random.default_rng(context)
    layout = lay_out([([context], random_tree(nodes, rng))])
    assert error(layout, shape, dtype, nodes) < TOLERANCE[dtype]


@DTYPES
def test_windows_softcap_and_sinks(dtype):
    rng = np.random.default_rng(1)
    layout = lay_out([([900], random_tree(20, rng)), ([40], chain(range(70)))])
    for options in ({"window": 100}, {"softcap": 3.0}, {"sinks": True}):
        assert error(layout, (8, 2, 64), dtype, 1, **options) < TOLERANCE[dtype]
    together = {"window": 30, "softcap": 2.0, "sinks": True}
    assert error(layout, (8, 2, 64), dtype, 2, **together) < TOLERANCE[dtype]


@pytest.mark.parametrize("nodes", [1, 16, 64])
def test_a_very_long_context(nodes):
    layout = lay_out([([131072 - nodes], random_tree(nodes, np.random.default_rng(nodes)))])
    assert error(layout, (8, 2, 128), torch.bfloat16, nodes) < TOLERANCE[torch.bfloat16]


@DTYPES
def test_reading_a_prompt(dtype):
    layout = lay_out([([1000], chain(range(700)))])
    assert error(layout, (8, 2, 128), dtype, 3) < TOLERANCE[dtype]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sequences=st.lists(
        st.tuples(st.lists(st.integers(0, 9000), min_size=1, max_size=3), st.integers(1, 100)),
        min_size=1,
        max_size=6,
    ),
    shared=st.integers(0, 2),
    window=st.one_of(st.none(), st.integers(1, 5000)),
    seed=st.integers(0, 10_000),
)
def test_any_packing_of_sequences(sequences, shared, window, seed):
    rng = np.random.default_rng(seed)
    shared = min(shared, min(len(lengths) for lengths, _ in sequences) - 1)
    common = sequences[0][0][:shared]
    layout = lay_out(
        [(common + lengths[shared:], random_tree(n, rng)) for lengths, n in sequences], shared
    )
    assert error(layout, (6, 2, 64), torch.bfloat16, seed, window=window) < 1e-2
