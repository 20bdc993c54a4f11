"""Products of a head's draft levels; with FP8 weights on Hopper (`pytest -m gpu`)."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from tiny_packed import DEVICE

from graft.kernels.fragment_matrix import FragmentMatrix
from graft.kernels.packed_matrix import fp8_matrix
from graft.models.heads.level_product import FEW, LevelProduct

DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float16
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9  # noqa: PLR2004
ROUNDED = 0.04 if ON_HOPPER else 0.004  # of the largest result


def randoms(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size))).to(DEVICE, DTYPE)


def assert_close(found, expected):
    assert (found - expected).abs().max() < ROUNDED * expected.abs().max()


@pytest.mark.parametrize("rows", [1, 10, FEW + 1])
@pytest.mark.parametrize("gated", [False, True])
def test_it_multiplies_few_rows_and_many(rows, gated):
    weight, x = randoms(96, 256), randoms(rows, 256)
    bias = None if gated else randoms(96)
    expected = F.linear(x.float(), weight.float(), None if gated else bias.float())
    if gated:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    assert_close(LevelProduct(weight, bias, gated=gated)(x).float(), expected)


def test_a_cut_product_has_a_sum_for_each_segment():
    weight, x = randoms(32, 8192), randoms(3, 8192)
    found = LevelProduct(weight, cut=True)(x)
    assert found.dim() == 3
    assert len(found) > 1
    assert_close(found.sum(0), F.linear(x.float(), weight.float()))


def test_rounding_to_fp8_is_relative_to_each_output():
    weight = randoms(64, 128).float() * torch.logspace(-6, 2, 64, device=DEVICE)[:, None]
    matrix = fp8_matrix(weight)
    rounded = matrix.codes.float() * matrix.scales.T
    largest = weight.abs().amax(1, keepdim=True)
    assert ((rounded - weight).abs() <= largest / 28 + 1e-9).all()
    assert torch.equal(fp8_matrix(torch.zeros(2, 4)).codes.float(), torch.zeros(2, 4))


@pytest.mark.gpu
@pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("rows", [1, 9, 16, 33, 64])
@pytest.mark.parametrize("options", [{}, {"gated": True}, {"cut": True}])
def test_weights_are_read_in_fp8_on_hopper(rows, options):
    """The shapes of a grown head: many inputs, few outputs and the other way round."""
    sizes = (1536, 13312) if "cut" in options else (13312, 1536)
    weight = randoms(*sizes) / sizes[1] ** 0.5
    x = randoms(rows, sizes[1])
    product = LevelProduct(weight, **options)
    assert isinstance(product._matrix, FragmentMatrix)
    found, expected = product(x).float(), F.linear(x.float(), weight.float())
    if "gated" in options:
        gate, up = expected.chunk(2, -1)
        expected = F.silu(gate) * up
    assert_close(found.sum(0) if found.dim() == 3 else found, expected)
