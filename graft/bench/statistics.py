"""Paired ratios with bootstrap intervals.

A pair is two measurements of one prompt (or item). The interval is the middle 95 % of the means of
resampled pairs (percentile bootstrap); ratios are averaged as logarithms, so the figure is their
geometric mean. The seed is fixed: a file always yields the same interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95
MIN_PAIRS = 8  # with fewer the bootstrap interval is too narrow to rely on


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `count` values with its interval; one value has none."""

    mean: float
    low: float | None
    high: float | None
    count: int


def mean(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean with its bootstrap interval."""
    found = np.asarray(values, float)
    if len(found) < 2:
        return Estimate(float(found.mean()), None, None, len(found))
    drawn = np.random.default_rng(seed).integers(len(found), size=(RESAMPLES, len(found)))
    ends = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    low, high = np.quantile(found[drawn].mean(1), ends)
    return Estimate(float(found.mean()), float(low), float(high), len(found))


def ratio(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Base over other, pair by pair: of times, above 1 means that `other` is faster."""
    found = mean([math.log(one / two) for one, two in zip(base, other, strict=True)])
    low, high = (None if each is None else math.exp(each) for each in (found.low, found.high))
    return Estimate(math.exp(found.mean), low, high, found.count)


def warning(found: Estimate, name: str) -> str | None:
    """A sentence where a ratio's interval supports no conclusion, else None."""
    items = f"{found.count} prompt{'' if found.count == 1 else 's'}"
    if found.low is None or found.high is None:
        return f"{name}: one prompt has no interval; measure more"
    interval = f"{found.low:.2f} to {found.high:.2f}"
    if found.low <= 1 <= found.high:
        return f"{name}: with {items} the interval {interval} includes 1; measure more"
    if found.count < MIN_PAIRS:
        return f"{name}: {items} are too few for a reliable interval ({interval}); measure more"
    return None
