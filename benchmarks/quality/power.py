"""Differences of pairs, and the smallest one that a comparison is likely to detect."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from graft.bench.statistics import CONFIDENCE, Estimate, mean

POWER = 0.80


def difference(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Other minus base, pair by pair."""
    return mean((np.asarray(other, float) - np.asarray(base, float)).tolist())


def detectable(base: Sequence[float], other: Sequence[float]) -> float | None:
    """The true difference that is significant in four of five runs; None where all are equal.

    With n pairs whose differences have the standard deviation s: (1.96 + 0.84) s / sqrt(n).
    """
    differences = np.asarray(other, float) - np.asarray(base, float)
    if len(differences) < 2 or not (spread := float(differences.std(ddof=1))):
        return None
    normal = NormalDist()
    reach = normal.inv_cdf((1 + CONFIDENCE) / 2) + normal.inv_cdf(POWER)
    return reach * spread / math.sqrt(len(differences))
