"""The matrix product over panels: right, and the same to the last bit for any number of rows."""

import numpy as np
import pytest
import torch
from numba import njit

from graft.kernels.panels import LANES, UNROLL, multiply_panels, narrow, pack_panels
from graft.models.panel_weights import bits, from_bits

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
DTYPES = [*FLOATS, torch.int8]
SIZES = [(16, 4), (1, 8), (15, 12), (17, 16), (48, 100), (50, 260)]  # columns, depth


def product(x: np.ndarray, panels: np.ndarray) -> np.ndarray:
    """x @ weight by the kernel, padding columns included."""
    result = np.full((len(x), len(panels) * LANES), np.nan, np.float32)
    wide = np.full((x.shape[1], LANES), np.nan, np.float32)
    multiply_panels(x, panels, 0, len(panels), result, wide)
    return result


def random_weight(columns: int, depth: int, dtype: torch.dtype) -> np.ndarray:
    generator = torch.Generator().manual_seed(columns * 1000 + depth)
    spread = 40 if dtype == torch.int8 else 1
    return bits((torch.randn(columns, depth, generator=generator) * spread).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "depth"), SIZES)
def test_product_equals_float64_for_any_number_of_rows(columns, depth, dtype):
    weight = random_weight(columns, depth, dtype)
    panels = pack_panels(weight)
    x = np.random.default_rng(0).standard_normal((20, depth)).astype(np.float32)
    expected = x.astype(np.float64) @ from_bits(weight).double().numpy().T
    for rows in range(1, 21):
        result = product(x[:rows], panels)
        near = 1e-6 * depth * max(1, float(from_bits(weight).float().abs().max()) / 4)
        np.testing.assert_allclose(result[:, :columns], expected[:rows], rtol=1e-5, atol=near)
        assert not result[:, columns:].any()  # missing columns are zero


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("depth", [4, 8, 252, 576])
def test_row_has_the_same_bits_in_any_batch(depth, dtype):
    panels = pack_panels(random_weight(33, depth, dtype))
    x = np.random.default_rng(1).standard_normal((20, depth)).astype(np.float32)
    alone = np.concatenate([product(row[None], panels) for row in x])
    for rows in range(2, 21):
        np.testing.assert_array_equal(product(x[:rows], panels), alone[:rows])
        np.testing.assert_array_equal(product(x[20 - rows :], panels), alone[20 - rows :])


def test_only_the_requested_columns_are_written():
    weight = random_weight(64, 8, torch.float32)
    x, wide = np.ones((3, 8), np.float32), np.empty((8, LANES), np.float32)
    result = np.full((3, 64), 7, np.float32)
    multiply_panels(x, pack_panels(weight), 1, 3, result, wide)
    assert (result[:, :16] == 7).all()
    assert (result[:, 48:] == 7).all()
    np.testing.assert_allclose(result[:, 16:48], (x @ weight.T)[:, 16:48], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 32, 50])
def test_packing_keeps_every_weight(columns, dtype):
    weight = random_weight(columns, 8, dtype)
    panels = pack_panels(weight)
    assert panels.dtype == weight.dtype
    unpacked = panels.transpose(0, 2, 1).reshape(-1, 8)  # [panels * 16, depth]
    np.testing.assert_array_equal(unpacked[:columns], weight)
    assert not unpacked[columns:].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_are_those_of_the_weight(dtype):
    weight = (10 * torch.randn(5, 7, generator=torch.Generator().manual_seed(3))).to(dtype)
    assert torch.equal(from_bits(bits(weight)).float(), weight.float())


@njit
def narrowed(values, result):
    for i in range(len(values)):
        result[i] = narrow(values[i], result)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_are_narrowed_to_the_nearest_and_never_to_infinity(dtype):
    own = torch.arange(-448, 449, dtype=torch.float32) / 512  # with all of float8's small numbers
    spread = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 30
    values = torch.cat([own, own / 3, spread, 2.0 ** torch.arange(-30, 20), spread * 1e4])
    values = torch.cat([values, -values])
    expected = values if dtype == torch.float32 else values.clamp(*limits(dtype)).to(dtype)
    result = np.empty(len(values), bits(expected).dtype)
    narrowed(values.numpy(), result)
    np.testing.assert_array_equal(result, bits(expected))


def limits(dtype: torch.dtype) -> tuple[float, float]:
    return torch.finfo(dtype).min, torch.finfo(dtype).max


def test_every_float8_is_widened_exactly():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = codes[~codes.float().isnan()]
    x = np.zeros((1, UNROLL), np.float32)
    x[0, 0] = 1
    weight = np.repeat(bits(codes)[:, None], UNROLL, 1)
    found = product(x, pack_panels(weight))[0, : len(codes)]
    np.testing.assert_array_equal(found, codes.float().numpy())


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 7, 18])
def test_depth_that_is_no_multiple_is_refused(depth):
    assert depth % UNROLL
    with pytest.raises(ValueError, match=f"depth {depth} is not a multiple of 4"):
        pack_panels(np.zeros((16, depth), np.float32))
