"""The Triton product against float64, through the interpreter where there is no GPU."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from same import assert_same

from graft.kernels.decoder_triton import add_norm, swiglu
from graft.kernels.product_triton import (
    ProductPlan,
    default_plan,
    plans,
    product,
    segment_bounds,
    segments_of,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
PLANS = {
    "few": ProductPlan(rows=16, outputs=16, depth=64, warps=4, stages=2),
    "swapped": ProductPlan(rows=16, outputs=64, depth=32, warps=4, stages=2, swapped=True),
    "many": ProductPlan(rows=32, outputs=32, depth=32, warps=4, stages=2),
}
all_plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def randoms(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor, depth: int) -> None:
    """Equal to float64 up to the rounding of the result and of what was summed."""
    rounding = torch.finfo(found.dtype).eps
    scale = float(expected.abs().max())
    near = (rounding if found.dtype != torch.float32 else rounding * depth**0.5) * scale
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=near)


@dtypes
@all_plans
@pytest.mark.parametrize(
    ("rows", "outputs", "depth"), [(1, 16, 128), (2, 20, 192), (17, 70, 100), (40, 33, 64)]
)
def test_any_size(rows, outputs, depth, plan, dtype):
    x, weight = randoms(rows, depth, dtype=dtype), randoms(outputs, depth, dtype=dtype)
    result = product(x, weight, plan=plan)
    assert_near(result, x.double() @ weight.double().T, depth)


@dtypes
@all_plans
def test_bias_is_added(plan, dtype):
    x, weight = randoms(3, 64, dtype=dtype), randoms(24, 64, dtype=dtype)
    bias = randoms(24, dtype=dtype) * 9
    expected = F.linear(x.double(), weight.double(), bias.double())
    assert_near(product(x, weight, bias=bias, plan=plan), expected, 64)


@dtypes
@all_plans
def test_gates_round_as_separate_kernels_do(plan, dtype):
    x, weight = randoms(3, 64, dtype=dtype), randoms(2 * 24, 64, dtype=dtype)
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    result = product(x, weight, gated=True, plan=plan)
    torch.testing.assert_close(result.double(), F.silu(gate) * up, rtol=4e-3, atol=2e-2)
    assert_same(result, swiglu(product(x, weight, plan=plan)))


@dtypes
@all_plans
def test_segments_are_partial_sums_in_order(plan, dtype):
    x, weight = randoms(3, 600, dtype=dtype), randoms(24, 600, dtype=dtype)
    parts = product(x, weight, segments=2, plan=plan)
    bounds = segment_bounds(600, 2)
    assert bounds == [(0, 512), (512, 600)]
    assert parts.dtype == torch.float32
    for part, (first, last) in zip(parts, bounds, strict=True):
        expected = x[:, first:last].double() @ weight[:, first:last].double().T
        torch.testing.assert_close(part.double(), expected, rtol=1e-4, atol=1e-4)
    hidden, gain = randoms(3, 24, dtype=dtype), torch.ones(24, device=DEVICE, dtype=dtype)
    added = hidden + (parts[0] + parts[1]).to(dtype)
    add_norm(hidden, parts, gain, 1e-5)
    assert torch.equal(hidden, added)


def test_result_is_rounded_before_it_is_widened():
    x, weight = randoms(3, 64, dtype=torch.float16), randoms(24, 64, dtype=torch.float16)
    wide = torch.empty(3, 24, device=DEVICE)
    assert product(x, weight, out=wide) is wide
    assert torch.equal(wide, product(x, weight).float())


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 200])
@pytest.mark.parametrize(
    ("outputs", "depth"), [(6144, 4096), (4096, 14336), (576, 576), (960, 576), (151936, 896)]
)
def test_plans_are_valid(rows, outputs, depth):
    for plan in plans(rows, outputs, depth):
        sizes = (plan.rows, plan.outputs, plan.depth, plan.warps)
        assert all(size & (size - 1) == 0 for size in sizes), "powers of two"
        assert plan.rows >= min(rows, 128)
    assert default_plan(rows, outputs, depth) in plans(rows, outputs, depth)


@pytest.mark.parametrize(
    ("outputs", "depth", "segments"),
    [
        (4096, 14336, 1),
        (1536, 8960, 4),
        (1536, 6144, 2),
        (1536, 53248, 4),
        (576, 1536, 1),
        (28672, 4096, 1),
    ],
)
def test_matrices_of_few_outputs_and_many_inputs_are_cut(outputs, depth, segments):
    assert segments_of(outputs, depth) == segments
    bounds = segment_bounds(depth, segments)
    assert len(bounds) == segments
    assert [first for first, _ in bounds[1:]] == [last for _, last in bounds[:-1]]
