"""Seconds of another engine's steps by requests and draft tokens, learned from the steps seen.

A step with drafts takes longer than a plain one for two reasons: its rows, and whatever an engine
does for any draft. Inside vLLM that is much, because the host waits for the tokens of the step
before. And beyond an engine's largest CUDA graph a step takes several times as long. So the mean of
steps like one that is asked for counts, and where there are few of them, a plane through all steps:
a constant, a summand for drafts, and a slope by rows. Recent steps count more.
"""

import numpy as np

RISE = 0.003  # of a step's time per additional row, before any measurement: on a GPU
DRAFTED = 0.1  # of a step's time: what any draft adds before any measurement
KEPT = 0.98  # weight of a step one step later
# How many steps the values above count for: the constant, drafts, and squared rows.
PRIOR = np.diag([0.01, 1.0, 32.0])
PLANE = 0.5  # steps that the plane counts for beside the mean of like ones
DISTURBED = 2.0  # times the expected seconds: longer steps count as so long


class StepTimes:
    """Decayed means of steps with about as many requests, and a plane through all."""

    def __init__(self) -> None:
        self._usual = np.array([1.0, DRAFTED, RISE])
        self._plane: np.ndarray | None = None  # if fitted since the last step
        self._weights, self._sums = np.zeros((3, 3)), np.zeros(3)
        self._steps = 0
        # By kind of requests and draft tokens: weight, seconds, last step
        self._means: dict[tuple[int, int], tuple[float, float, int]] = {}

    def observe(self, requests: int, width: int, seconds: float) -> float:
        """Count a step in which so many requests had `width` draft tokens each; the seconds that
        it counts for."""
        row = _row(requests, width)
        if self._steps:
            seconds = min(seconds, DISTURBED * self.seconds(requests, width))
        else:
            self._usual = seconds * np.array([1.0, DRAFTED, RISE]) / (1 + RISE * requests)
        kind = kind_of(requests), width
        weight, mean, _ = self._recent(kind)
        self._steps += 1
        self._means[kind] = weight + 1, mean + (seconds - mean) / (weight + 1), self._steps
        self._weights = KEPT * self._weights + row[:, None] * row
        self._sums = KEPT * self._sums + row * seconds
        self._plane = None
        return seconds

    def seconds(self, requests: int, width: int) -> float:
        """Expected of such a step; a plain step takes about 1 before any was seen."""
        weight, mean, _ = self._recent((kind_of(requests), width))
        if self._plane is None:
            found = np.linalg.solve(self._weights + PRIOR, self._sums + PRIOR @ self._usual)
            self._plane = np.maximum(found, 0.0)
        expected = float(_row(requests, width) @ self._plane)
        return (weight * mean + PLANE * expected) / (weight + PLANE)

    def weight(self, requests: int, width: int) -> float:
        """How many such steps were seen, recent ones counting more."""
        return self._recent((kind_of(requests), width))[0]

    def _recent(self, kind: tuple[int, int]) -> tuple[float, float, int]:
        weight, mean, last = self._means.get(kind, (0.0, 0.0, 0))
        return weight * KEPT ** (self._steps - last), mean, last


def _row(requests: int, width: int) -> np.ndarray:
    return np.array([1.0, float(width > 0), requests * (1.0 + width)])


def kind_of(requests: int) -> int:
    """Steps with numbers of requests of one kind take about as long."""
    return (requests - 1).bit_length()
