"""Products in fragment order have the bits of Triton's, on Hopper. Run with `pytest -m gpu`."""

import pytest
import torch
from tiny_packed import packed

from graft.kernels.fragment_matrix import FragmentMatrix, for_device, in_fragments
from graft.kernels.fragment_product_gluon import fragment_plans
from graft.kernels.packed_product_triton import packed_plans

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9  # noqa: PLR2004
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU"),
]
KINDS = ("fp8", "fp8 blocks", "4 bits", "4 bits, one group")
ROWS = (1, 2, 5, 16, 17, 64, 100)
OPTIONS = {
    "plain": {},
    "biased": {"biased": True},
    "gated": {"gated": True},
    "cut": {"segments": 2},
}
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
all_kinds = pytest.mark.parametrize("kind", KINDS)


def poison() -> None:
    """Leave memory that is not a number where the next tensors are allocated."""
    held = [torch.full((1 << size,), float("nan"), device="cuda") for size in range(8, 24)]
    del held


@dtypes
@all_kinds
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_bits_are_those_of_triton(kind, options, dtype):
    outputs, depth = 32 * 18, 2304  # not a multiple of a program's outputs; a shorter last segment
    matrix = packed(kind, outputs, depth, dtype)
    fragments = in_fragments(matrix)
    given = dict(options)
    if given.pop("biased", False):
        given["bias"] = torch.randn(outputs, device="cuda").to(dtype)
    for rows in ROWS:
        x = torch.randn(rows, depth, device="cuda").to(dtype)
        expected = matrix.product(x, plan=packed_plans(matrix, rows)[0], **given)
        assert expected.isfinite().all()
        for plan in fragment_plans(rows, outputs):
            poison()
            assert torch.equal(fragments.product(x, plan=plan, **given), expected), (rows, plan)


@dtypes
@all_kinds
def test_dense_form_is_triton_s(kind, dtype):
    matrix = packed(kind, 512, 1024, dtype)
    assert torch.equal(in_fragments(matrix).dense(), matrix.dense())


@all_kinds
def test_device_stores_fragments(kind):
    assert isinstance(for_device(packed(kind, 64, 256, torch.bfloat16)), FragmentMatrix)
