"""The small functions of a decoder layer against float64."""

import numpy as np
import pytest

from graft.kernels.elementwise import exponentiate, gate, largest, rms_norm, rotate


def exponentials(x: np.ndarray) -> np.ndarray:
    result = x.copy()
    exponentiate(result, len(x), np.float32(0), np.float32(1))
    return result


def randoms(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_exp_is_within_three_tenmillionths():
    x = np.linspace(-87, 88, 40_001, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    assert np.abs(exponentials(x) / expected - 1).max() < 3e-7


def test_exp_of_zero_is_one_and_its_range_is_clamped():
    x = np.array([0, -0.0, -np.inf, -87.1, -1e30, 88, 89, 1e30], np.float32)
    result = exponentials(x)
    assert (result[:2] == 1).all()
    assert (result[2:5] == 0).all()
    assert (result[5:] == result[5]).all()
    assert result[5] == pytest.approx(np.exp(88.0), rel=1e-6)


@pytest.mark.parametrize("size", [1, 15, 64, 100])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm_equals_float64(size, scale):
    x, weight = randoms(size) * np.float32(scale), randoms(size) + np.float32(2)
    result = np.empty_like(x)
    rms_norm(x, weight, np.float32(1e-5), result)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2) + 1e-5) * weight
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-7)


def test_rms_norm_may_write_over_its_input():
    x, weight = randoms(32), randoms(32)
    apart = np.empty_like(x)
    rms_norm(x, weight, np.float32(1e-6), apart)
    rms_norm(x, weight, np.float32(1e-6), x)
    np.testing.assert_array_equal(x, apart)


def test_rotation_equals_complex_multiplication():
    x, angle = randoms(16), randoms(8)
    result = np.empty_like(x)
    rotate(x, np.cos(angle), np.sin(angle), result)
    turned = (x[:8] + 1j * x[8:]) * np.exp(1j * angle.astype(np.float64))
    np.testing.assert_allclose(result, np.concatenate([turned.real, turned.imag]), atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 33, 64])
def test_exp_does_not_depend_on_the_position(count):
    x = randoms(count) * np.float32(9)
    alone = np.concatenate([exponentials(x[i : i + 1]) for i in range(count)])
    np.testing.assert_array_equal(exponentials(x), alone)


@pytest.mark.parametrize("count", [1, 7, 16, 48])
def test_largest_is_the_maximum_also_among_minus_infinities(count):
    x = randoms(64)
    assert largest(x, count) == x[:count].max()
    x[: count - 1] = -np.inf
    assert largest(x, count) == x[count - 1]
    x[count - 1] = -np.inf
    assert largest(x, count) == -np.inf


def test_gate_multiplies_its_columns_and_leaves_the_others():
    paired = randoms(2 * 48) * np.float32(5)
    result = np.full(48, 9, np.float32)
    gate(paired, 16, 48, result)
    gates, ups = paired.astype(np.float64).reshape(2, 48)
    expected = gates / (1 + np.exp(-gates)) * ups
    np.testing.assert_allclose(result[16:], expected[16:], rtol=2e-6, atol=1e-6)
    assert (result[:16] == 9).all()
