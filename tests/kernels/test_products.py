"""int8 products: right, and the same bits for any number of rows, with and without `sdot`."""

import numpy as np
import pytest
from numba import njit

from graft.kernels import products
from graft.kernels.int8_dots import STEP, multiply_digits, pack_quads, split_rows
from graft.kernels.llvm_ir import has_sdot
from graft.kernels.panels import LANES, multiply_panels, pack_panels
from graft.kernels.products import multiply_columns, multiply_share, pack_weight, prepare_rows

SIZES = [(16, 16), (17, 32), (50, 272), (33, 1536)]  # columns, depth


@njit
def whole(x, weight, scale, y):
    return multiply_share(x, weight, scale, 0, 1, y)


@njit
def some_columns(x, weight, scale, first, last, y):
    multiply_columns(prepare_rows(x, weight), weight, scale, first, last, y)


def by_choice(x, codes, scale):
    """By whatever kernel this machine has."""
    panels = pack_weight(codes)
    y = np.full((len(x), len(panels) * LANES), np.nan, np.float32)
    assert whole(x, panels, padded(scale), y) == (0, len(panels))
    return y[:, : len(codes)]


def by_widening(x, codes, scale):
    """By the kernel every machine has."""
    panels = pack_panels(codes)
    y = np.full((len(x), len(panels) * LANES), np.nan, np.float32)
    wide = np.empty((x.shape[1], LANES), np.float32)
    multiply_panels(x, panels, 0, len(panels), y, wide)
    products.scale_columns(y, padded(scale), 0, len(panels) * LANES)
    return y[:, : len(codes)]


KERNELS = [by_choice, by_widening]
kernels = pytest.mark.parametrize("product", KERNELS, ids=lambda kernel: kernel.__name__)


def padded(scale: np.ndarray) -> np.ndarray:
    return np.pad(scale, (0, -len(scale) % LANES))


def random_weight(columns: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes over the whole range, the ends included, and scales of very different sizes."""
    rng = np.random.default_rng(columns + depth)
    codes = rng.integers(-128, 128, (columns, depth)).astype(np.int8)
    codes[0, 0], codes[-1, -1] = -128, 127
    return codes, np.exp(rng.uniform(-9, 0, columns)).astype(np.float32)


def random_rows(count: int, depth: int) -> np.ndarray:
    return np.random.default_rng(depth).standard_normal((count, depth)).astype(np.float32)


@kernels
@pytest.mark.parametrize(("columns", "depth"), SIZES)
def test_int8_product_is_as_exact_as_float32(columns, depth, product):
    codes, scale = random_weight(columns, depth)
    x = random_rows(20, depth)
    expected = (x.astype(np.float64) @ codes.T.astype(np.float64)) * scale
    near = 3e-7 * (np.abs(x).astype(np.float64) @ np.abs(codes.T.astype(np.float64))) * scale
    for rows in (1, 2, 3, 4, 5, 7, 16, 20):
        result = product(x[:rows], codes, scale)
        assert (np.abs(result - expected[:rows]) <= near[:rows]).all()


@kernels
def test_row_has_the_same_bits_in_any_batch(product):
    codes, scale = random_weight(33, 576)
    x = random_rows(20, 576)
    alone = np.concatenate([product(row[None], codes, scale) for row in x])
    for rows in range(2, 21):
        np.testing.assert_array_equal(product(x[:rows], codes, scale), alone[:rows])
        np.testing.assert_array_equal(product(x[20 - rows :], codes, scale), alone[20 - rows :])


@kernels
def test_outlier_does_not_cost_precision(product):
    codes, scale = random_weight(16, 64)
    x = random_rows(1, 64)
    x[0, 5] = 1000
    expected = (x.astype(np.float64) @ codes.T.astype(np.float64)) * scale
    np.testing.assert_allclose(product(x, codes, scale), expected, rtol=1e-5)


@kernels
def test_rows_of_zeros_and_of_one_number(product):
    codes, scale = random_weight(16, 32)
    for value in (0.0, 1e-40, 1e-30, -3.5, 1e20):
        x = np.full((1, 32), value, np.float32)
        expected = codes.astype(np.float64).sum(1) * value * scale
        np.testing.assert_allclose(product(x, codes, scale)[0], expected, rtol=1e-5, atol=1e-38)


def test_only_the_requested_columns_are_written():
    codes, scale = random_weight(64, 32)
    x, result = random_rows(3, 32), np.full((3, 64), 7, np.float32)
    some_columns(x, pack_weight(codes), scale, 1, 3, result)
    assert (result[:, :16] == 7).all()
    assert (result[:, 48:] == 7).all()
    np.testing.assert_array_equal(result[:, 16:48], by_choice(x, codes, scale)[:, 16:48])


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_other_weights_have_no_scale(dtype):
    weight = np.arange(16 * 8, dtype=dtype).reshape(16, 8) + 16000
    x, nothing = random_rows(3, 8), np.empty(0, np.float32)
    result, expected = (np.empty((3, 16), np.float32) for _ in range(2))
    whole(x, pack_weight(weight), nothing, result)
    multiply_panels(x, pack_panels(weight), 0, 1, expected, np.empty((8, LANES), np.float32))
    np.testing.assert_array_equal(result, expected)


def test_digits_reproduce_the_inputs():
    x = random_rows(5, 64) * np.array([[1], [1e-20], [1e20], [0], [3]], np.float32)
    digits, worth = split_rows(x)
    back = (digits.astype(np.float64) * np.array([65536, 256, 1])[:, None]).sum(1) * worth[:, None]
    largest = np.abs(x).max(1, keepdims=True)
    assert (np.abs(back - x) <= 2.0**-22 * largest).all()


def test_largest_input_never_overflows_its_digits():
    x = np.exp(np.random.default_rng(0).uniform(-30, 30, (500, 16))).astype(np.float32)
    x[::2] *= -1
    digits, worth = split_rows(x)
    back = (digits.astype(np.float64) * np.array([65536, 256, 1])[:, None]).sum(1) * worth[:, None]
    np.testing.assert_allclose(np.abs(back).max(1), np.abs(x).max(1), rtol=1e-6)


@pytest.mark.skipif(not has_sdot(), reason="this CPU has no dot product of int8")
def test_both_kernels_agree():
    codes, scale = random_weight(48, 1024)
    x = random_rows(7, 1024)
    panels, y = pack_quads(codes), np.empty((7, 48), np.float32)
    multiply_digits(*split_rows(x), panels, scale, 0, 3, y)
    expected = by_widening(x, codes, scale)
    near = 3e-6 * np.abs(expected).max(0)
    assert (np.abs(y - expected) <= near).all()


@pytest.mark.parametrize("depth", [4, 8, 24])
def test_depth_that_is_no_multiple_is_refused(depth):
    with pytest.raises(ValueError, match=f"depth {depth} is not a multiple of {STEP}"):
        pack_quads(np.zeros((16, depth), np.int8))
