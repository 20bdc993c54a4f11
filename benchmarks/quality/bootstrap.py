"""How sure a mean or a difference of means is, and how small a difference could have been seen.

Items are drawn again with replacement; both systems keep their answers to an item together, so
what makes an item hard for both drops out. The interval has the middle 95 % of the resampled
means. The power statement is about the same paired differences: with n of them and their standard
deviation s, a true difference of (1.96 + 0.84) s / sqrt(n) is found significant four times in five.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 10_000
CONFIDENCE, POWER = 0.95, 0.80


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `items` values and its interval; no bounds for one item."""

    mean: float
    low: float | None
    high: float | None
    items: int


def mean_of(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean with its bootstrap interval."""
    found = np.asarray(values, float)
    if len(found) < 2:
        return Estimate(float(found.mean()), None, None, len(found))
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(found), size=(RESAMPLES, len(found)))
    low, high = np.quantile(found[drawn].mean(1), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Estimate(float(found.mean()), float(low), float(high), len(found))


def difference(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Of two systems on the same items: other minus base."""
    return mean_of(np.asarray(other, float) - np.asarray(base, float))


def detectable(base: Sequence[float], other: Sequence[float]) -> float | None:
    """The true difference that so many items show four times in five; None where all are equal."""
    differences = np.asarray(other, float) - np.asarray(base, float)
    if len(differences) < 2 or not (spread := float(differences.std(ddof=1))):
        return None
    normal = NormalDist()
    reach = normal.inv_cdf((1 + CONFIDENCE) / 2) + normal.inv_cdf(POWER)
    return reach * spread / math.sqrt(len(differences))
