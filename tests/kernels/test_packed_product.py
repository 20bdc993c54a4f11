"""Products with quantised matrices against their dense form, through the interpreter without a
GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from tiny_packed import DEVICE, packed, reference

from graft.kernels.decoder_triton import swiglu
from graft.kernels.packed_matrix import PackedMatrix, joined, pack_four_bits
from graft.kernels.packed_product_triton import scale_sums, widen
from graft.kernels.product_triton import ProductPlan, product

DTYPES = [torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
KINDS = ("fp8", "fp8 blocks", "4 bits", "4 bits, groups of 32", "4 bits, one group")
PLANS = {
    "few": ProductPlan(rows=16, outputs=16, depth=128, warps=4, stages=2),
    "swapped": ProductPlan(rows=16, outputs=64, depth=128, warps=4, stages=2, swapped=True),
}
all_plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
all_kinds = pytest.mark.parametrize("kind", KINDS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def inputs(rows: int, depth: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, depth, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)


def test_codes_of_four_bits_keep_their_places():
    codes = torch.arange(256).remainder(16).to(torch.uint8).repeat(3, 1)
    scales, zeros = torch.ones(2, 3, dtype=torch.float16), torch.zeros(2, 3, dtype=torch.float16)
    matrix = PackedMatrix(pack_four_bits(codes, 128), scales, zeros, torch.float16)
    assert matrix.shape == (3, 256)
    assert torch.equal(matrix.dense(), codes.half())


@dtypes
@all_kinds
def test_widened_by_the_kernel_as_by_definition(kind, dtype):
    matrix = packed(kind, 70, 384, dtype)
    assert torch.equal(widen(matrix), reference(matrix))


@dtypes
@pytest.mark.parametrize("biased", [False, True])
def test_sums_are_scaled_and_rounded_once(biased, dtype):
    random = torch.Generator().manual_seed(3)
    sums = torch.randn(5, 70, generator=random).to(DEVICE)
    factors = torch.rand(70, generator=random).to(DEVICE)
    bias = inputs(1, 70, dtype)[0] if biased else None
    expected = sums * factors
    expected = expected if bias is None else expected + bias.float()
    found = scale_sums(sums, factors, bias, inputs(5, 70, dtype))
    assert torch.equal(found, expected.to(dtype))


@dtypes
@all_plans
@all_kinds
def test_product_is_that_of_the_dense_form(kind, plan, dtype):
    rows, outputs, depth = 17, 70, 384
    matrix, x = packed(kind, outputs, depth, dtype), inputs(rows, depth, dtype)
    bias = inputs(1, outputs, dtype)[0]
    expected = x.double() @ reference(matrix).double().T
    if matrix.factors is not None:
        expected = expected * matrix.factors
    found = matrix.product(x, bias=bias, plan=plan)
    near = torch.finfo(dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected + bias, rtol=1e-3, atol=near)
    if DEVICE.type == "cuda" and matrix.factors is None:
        assert torch.equal(found, product(x, reference(matrix), bias=bias, plan=plan))


@dtypes
@all_plans
@all_kinds
def test_row_does_not_depend_on_other_rows(kind, plan, dtype):
    matrix, x = packed(kind, 48, 256, dtype), inputs(20, 256, dtype)
    assert torch.equal(
        matrix.product(x, plan=plan)[3:4], matrix.product(x[3:4].contiguous(), plan=plan)
    )


@dtypes
@all_plans
@all_kinds
def test_gated_and_cut_products(kind, plan, dtype):
    matrix, x = packed(kind, 48, 512, dtype), inputs(3, 512, dtype)
    whole = matrix.product(x, plan=plan)
    gated = matrix.product(x, gated=True, plan=plan)
    assert torch.equal(gated, swiglu(whole))
    parts = matrix.product(x, segments=2, plan=plan)
    near = torch.finfo(dtype).eps * float(whole.abs().max())
    torch.testing.assert_close(parts.sum(0), whole.float(), rtol=2e-3, atol=near)


@all_kinds
def test_joined_matrices_keep_their_outputs(kind):
    parts = [packed(kind, outputs, 256, torch.float16, outputs) for outputs in (16, 40)]
    dense = torch.cat([reference(part) for part in parts])
    assert torch.equal(reference(joined(parts)), dense)
