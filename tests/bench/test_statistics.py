"""Bootstrap intervals of paired ratios."""

import numpy as np
import pytest

from graft.bench.statistics import mean, ratio


def test_ratio_is_the_geometric_mean_of_the_pairs():
    found = ratio([3.0, 8.0], [3.0, 2.0])
    assert found.mean == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((1, 4))
    assert found.count == 2


def test_one_pair_has_no_interval_and_equal_pairs_have_an_empty_one():
    assert ratio([2.0], [1.0]).low is None
    same = ratio([2.0, 3.0], [2.0, 3.0])
    assert (same.mean, same.low, same.high) == (1, 1, 1)


def test_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    found = [mean(rng.normal(0.0, 1.0, 30)) for _ in range(100)]
    assert 85 <= sum(each.low <= 0 <= each.high for each in found) <= 100


def test_intervals_narrow_with_the_number_of_pairs_and_are_reproducible():
    rng = np.random.default_rng(2)
    values = rng.uniform(1, 3, 400)
    few, many = mean(values[:10]), mean(values)
    assert many.high - many.low < few.high - few.low
    assert mean(values) == many
