"""The Triton product of few rows against float64, through the interpreter where there is no GPU."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.product_triton import MAX_ROWS, ProductPlan, plan_product, product

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
PLANS = {
    "summed": ProductPlan(outputs=4, depth=128, splits=1, warps=4, stages=1, dots=False),
    "summed in splits": ProductPlan(outputs=8, depth=32, splits=3, warps=4, stages=1, dots=False),
    "dots": ProductPlan(outputs=16, depth=64, splits=1, warps=4, stages=2, dots=True),
    "dots in splits": ProductPlan(outputs=16, depth=32, splits=4, warps=4, stages=2, dots=True),
}
plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
EPSILON = 1e-5


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
@plans
@pytest.mark.parametrize(("rows", "outputs", "depth"), [(1, 16, 128), (2, 20, 192), (4, 33, 100)])
def test_few_rows(rows, outputs, depth, plan, dtype):
    x, weight = randoms(rows, depth, dtype=dtype), randoms(outputs, depth, dtype=dtype)
    result = product(x, weight, plan=plan)
    assert_near(result, x.double() @ weight.double().T, depth)


@dtypes
@pytest.mark.parametrize("rows", [5, 16, 17, 40, MAX_ROWS])
def test_more_rows_by_dots(rows, dtype):
    x, weight = randoms(rows, 96, dtype=dtype), randoms(40, 96, dtype=dtype)
    for plan in (PLANS["dots"], PLANS["dots in splits"]):
        assert_near(product(x, weight, plan=plan), x.double() @ weight.double().T, 96)


@dtypes
@plans
def test_norm_is_fused(plan, dtype):
    x, weight = randoms(3, 160, dtype=dtype) * 7, randoms(24, 160, dtype=dtype)
    gain = randoms(160, dtype=dtype)
    normed = F.rms_norm(x.double(), (160,), gain.double(), EPSILON)
    result = product(x, weight, norm=(gain, EPSILON), plan=plan)
    assert_near(result, normed @ weight.double().T, 160)


@dtypes
@plans
def test_bias_is_added(plan, dtype):
    x, weight = randoms(3, 64, dtype=dtype), randoms(24, 64, dtype=dtype)
    bias = randoms(24, dtype=dtype) * 9
    expected = F.linear(x.double(), weight.double(), bias.double())
    assert_near(product(x, weight, bias=bias, plan=plan), expected, 64)


@dtypes
@plans
def test_residual_is_added_to_in_place(plan, dtype):
    x, weight = randoms(3, 64, dtype=dtype), randoms(24, 64, dtype=dtype)
    residual = randoms(3, 24, dtype=dtype) * 9
    expected = residual.double() + x.double() @ weight.double().T
    assert product(x, weight, residual=residual, plan=plan) is residual
    assert_near(residual, expected, 64)


@dtypes
@plans
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_gates_and_ups_are_fused(normed, plan, dtype):
    x, weight = randoms(3, 64, dtype=dtype), randoms(2 * 24, 64, dtype=dtype)
    norm = (randoms(64, dtype=dtype), EPSILON) if normed else None
    wide = F.rms_norm(x.double(), (64,), norm[0].double(), EPSILON) if norm else x.double()
    gate, up = (wide @ weight.double().T).chunk(2, -1)
    result = product(x, weight, norm=norm, gated=True, plan=plan)
    assert_near(result, F.silu(gate) * up, 64)


@plans
def test_the_same_call_gives_the_same_bits(plan):
    x, weight = randoms(4, 100, dtype=torch.float32), randoms(40, 100, dtype=torch.float32)
    gain = randoms(100, dtype=torch.float32)
    first = product(x, weight, norm=(gain, EPSILON), plan=plan)
    for _ in range(2):
        assert torch.equal(product(x, weight, norm=(gain, EPSILON), plan=plan), first)


@pytest.mark.parametrize("rows", [1, 4, 5, 20])
def test_default_plan_works(rows):
    x, weight = randoms(rows, 576, dtype=torch.float32), randoms(72, 576, dtype=torch.float32)
    assert_near(product(x, weight), x.double() @ weight.double().T, 576)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("outputs", "depth"), [(6144, 4096), (4096, 14336), (576, 576), (960, 576), (151936, 896)]
)
def test_plans_are_valid(rows, outputs, depth, gated):
    plan = plan_product(rows, outputs, depth, gated=gated)
    sizes = (plan.outputs, plan.depth, plan.warps)
    assert all(size & (size - 1) == 0 for size in sizes), "powers of two"
    assert plan.splits == 1 or plan.splits * plan.depth <= depth, "everyone has something to do"
    assert plan.dots or rows <= 4
