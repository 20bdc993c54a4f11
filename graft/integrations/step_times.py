"""What another engine's steps cost by requests and draft tokens, learned from the steps seen.

Costs are in units that all steps share: whatever slows all of them for a while, such as arriving
requests, moves the unit (`_unit`, in seconds) and no cost. So plain steps that were timed in a slow
moment can be compared with drafts that were timed later. A plain step right after drafts takes
longer, because the device waits until the host knows the tokens of these: it has its own cost. A
cost is the median of recent steps of its kind. Where a kind was not seen, the most similar counts.
"""

from collections import deque
from math import log2
from statistics import median

RISE = 0.003  # of a plain step: what an additional row adds before any measurement, on a GPU
DRAFTED = 0.1  # of a plain step: what any draft adds before any measurement
KEPT = 9  # steps of a kind that its median is of
FOLLOWED = 0.25  # of a step's deviation from its cost: what the unit follows
SETTLED = 3  # steps of a kind after which they move the unit
AGED = 500  # steps after which those of a kind before count no more
AFTER_DRAFTS = -1  # in place of draft tokens: a plain step right after drafts
OUTLIER = 3.0  # times the expected cost: longer steps count as so long
SHORTEST = 1e-6  # seconds

Kind = tuple[int, int]  # of requests; draft tokens of each


class StepTimes:
    """Costs of steps of each kind."""

    def __init__(self) -> None:
        self._unit = 0.0  # seconds
        self._steps = 0
        self._recent: dict[Kind, deque[float]] = {}
        self._medians: dict[Kind, float] = {}
        self._last: dict[Kind, int] = {}  # when a kind was seen

    def observe(self, requests: int, width: int, seconds: float) -> None:
        """Count a step in which so many requests had `width` draft tokens each."""
        kind, seconds = (kind_of(requests), width), max(seconds, SHORTEST)
        expected = self.cost(requests, width)
        if not self._steps:
            self._unit = seconds / expected
        cost = min(seconds / self._unit, OUTLIER * expected)
        self._steps += 1
        aged = self.unseen(requests, width) > AGED
        recent = self._recent.setdefault(kind, deque(maxlen=KEPT))
        if aged:
            recent.clear()
        self._last[kind] = self._steps
        if len(recent) >= SETTLED:
            self._unit *= (max(cost, expected / OUTLIER) / expected) ** FOLLOWED
        recent.append(cost)
        self._medians[kind] = median(recent)

    def cost(self, requests: int, width: int) -> float:
        """Expected of such a step; 1 of a plain one before any was seen."""
        kind = kind_of(requests), width
        known = self._medians.get(kind)
        if known is not None:
            return known
        if width == AFTER_DRAFTS:
            return self.cost(requests, 0)
        if not width:
            return self._nearest_plain(kind[0])
        rows = requests * width
        others = [
            (_distance(kind, other), cost / self._medians[other[0], 0], other)
            for other, cost in self._medians.items()
            if other[1] > 0 and (other[0], 0) in self._medians
        ]
        if others:
            _, ratio, (power, drafted) = min(others)
            ratio += RISE * (rows - drafted * min(1 << power, requests))
        else:
            ratio = 1.0 + DRAFTED + RISE * rows
        return max(ratio, 1.0) * self.cost(requests, 0)

    def unseen(self, requests: int, width: int) -> int:
        """Steps since the last one of that kind."""
        return self._steps - self._last.get((kind_of(requests), width), 0)

    def _nearest_plain(self, power: int) -> float:
        plain = [
            (abs(other - power), cost)
            for (other, width), cost in self._medians.items()
            if not width
        ]
        if plain:
            return min(plain)[1]
        others = [
            (abs(other - power), max(width, 0), cost)
            for (other, width), cost in self._medians.items()
        ]
        if not others:
            return 1.0
        _, width, cost = min(others)
        return cost / (1.0 + DRAFTED + RISE * width * (1 << power) if width else 1.0)


def _distance(kind: Kind, other: Kind) -> float:
    """Between kinds with drafts."""
    return abs(kind[0] - other[0]) + abs(log2((kind[1] + 1) / (other[1] + 1)))


def kind_of(requests: int) -> int:
    """Steps with numbers of requests of one kind take about as long."""
    return (requests - 1).bit_length()
