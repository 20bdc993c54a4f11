"""What another engine's steps cost by requests and draft tokens, learned from the steps seen.

The cost of a draft is the time of a step with it in plain steps of as many requests. Whatever slows
all steps for a while, such as arriving requests or another process, must not look like a cost. So
steps are compared where one kind follows another: the first ones of a run with the last ones of the
run before. The median of several such comparisons counts, as long as steps with the draft take
about as long as they did then. A plain step right after drafts takes longer, because the device
waits until the host knows the tokens of these: it has its own cost. Where nothing was compared, the
most similar draft counts.
"""

from collections import deque
from dataclasses import dataclass, field
from math import log2
from statistics import median_low

RISE = 0.003  # of a plain step: what an additional row adds before any measurement, on a GPU
DRAFTED = 0.1  # of a plain step: what any draft adds before any measurement
COMPARED = 9  # steps of a run that are compared, at most
FEWEST = 2  # steps of runs that are compared
FRESH = 64  # steps: runs that ended before are of another time
COMPARISONS = 5  # that a median is of
CHANGED = 1.2  # times as long, or as short: a comparison with such steps counts no more
AFTER_DRAFTS = -1  # in place of draft tokens: a plain step right after drafts
OUTLIER = 3.0  # times the expected cost: higher ones count as so high
SHORTEST = 1e-6  # seconds

Kind = tuple[int, int]  # of requests; draft tokens of each


@dataclass(slots=True)
class Run:
    """Steps of one kind with no others of as many requests between them."""

    width: int
    steps: int = 0
    ended: int = 0  # the number of the last step
    last: deque[float] = field(default_factory=lambda: deque(maxlen=COMPARED))  # seconds

    @property
    def seconds(self) -> float:
        """The usual time of its last steps; a long one of two does not count."""
        return median_low(self.last)


class StepTimes:
    """Costs of steps of each kind."""

    def __init__(self) -> None:
        self._steps = 0
        self._runs: dict[int, tuple[Run | None, Run]] = {}  # by kind of requests: the last two
        self._compared: dict[Kind, deque[tuple[float, float]]] = {}  # seconds, and the cost then
        self._costs: dict[Kind, float] = {}
        self._seen: dict[Kind, int] = {}  # the number of the last step
        self._anchored: dict[Kind, int] = {}  # that of the plain step a cost goes back to
        self._open: Kind | None = None  # what is compared now

    def observe(self, requests: int, width: int, seconds: float) -> None:
        """Count a step in which so many requests had `width` draft tokens each."""
        power, seconds = kind_of(requests), max(seconds, SHORTEST)
        self._steps += 1
        self._seen[power, width] = self._steps
        before, run = self._runs.get(power, (None, Run(width)))
        if self._steps - run.ended > FRESH and run.steps:
            before, run = None, Run(width)
        if width == AFTER_DRAFTS:  # neither ends a run nor begins one
            if run.steps >= FEWEST:
                self._compare(requests, width, seconds, run, begins=True)
            return
        if run.width != width:
            before, run = run, Run(width)
        run.last.append(seconds)
        run.steps, run.ended = run.steps + 1, self._steps
        self._runs[power] = before, run
        begins = run.steps == FEWEST
        if before is None or before.steps < FEWEST or not FEWEST <= run.steps <= COMPARED:
            return
        if width:
            if not before.width or run.steps <= before.steps:
                self._compare(requests, width, run.seconds, before, begins=begins)
        else:
            self._compare(requests, before.width, before.seconds, run, begins=begins)

    def _compare(
        self, requests: int, width: int, seconds: float, other: Run, *, begins: bool
    ) -> None:
        """Compare steps that took so long with another run, anew if that begins, else in place of
        the last time. Of two runs with drafts the one tells of the other that was compared with
        plain steps later: if each told of the other, errors would add up."""
        kind = kind_of(requests), width
        if begins:
            anchor = self._anchored.get((kind[0], other.width), 0) if other.width else self._steps
            self._open = kind if anchor > self._anchored.get(kind, 0) else None
            if self._open:
                self._anchored[kind] = anchor
        if self._open != kind:
            return
        cost = seconds / other.seconds * self.cost(requests, other.width)
        cost = max(min(cost, OUTLIER * self.cost(requests, width)), 1.0)
        compared = self._compared.setdefault(kind, deque(maxlen=COMPARISONS))
        if compared and not begins:
            compared.pop()
        if compared and not 1 / CHANGED < seconds / compared[-1][0] < CHANGED:
            compared.clear()
        compared.append((seconds, cost))
        self._costs[kind] = median_low(each for _, each in compared)

    def cost(self, requests: int, width: int) -> float:
        """Expected of such a step, in plain ones of as many requests."""
        if not width:
            return 1.0
        kind = kind_of(requests), width
        known = self._costs.get(kind)
        if known is not None:
            return known
        after = width == AFTER_DRAFTS
        others = [
            (_distance(kind, other), cost, other)
            for other, cost in self._costs.items()
            if (other[1] == AFTER_DRAFTS) == after
        ]
        if after:
            return min(others)[1] if others else 1.0
        rows = requests * width
        if not others:
            return 1.0 + DRAFTED + RISE * rows
        _, cost, (power, drafted) = min(others)
        return max(cost + RISE * (rows - drafted * min(1 << power, requests)), 1.0)

    def cost_at_most(self, requests: int, width: int) -> float:
        """What such a step costs if it alone takes longer now than when it was compared."""
        _, run = self._runs.get(kind_of(requests), (None, None))
        compared = self._compared.get((kind_of(requests), width))
        longer = 1.0
        if run is not None and run.width == width and compared:
            longer = run.seconds / compared[-1][0]
        return self.cost(requests, width) * (longer if longer > CHANGED else 1.0)

    def unseen(self, requests: int, width: int) -> int:
        """Steps since the last one of that kind."""
        return self._steps - self._seen.get((kind_of(requests), width), 0)


def _distance(kind: Kind, other: Kind) -> float:
    """Between kinds with drafts, or between those after drafts."""
    return abs(kind[0] - other[0]) + abs(log2((kind[1] + 2) / (other[1] + 2)))


def kind_of(requests: int) -> int:
    """Steps with numbers of requests of one kind take about as long."""
    return (requests - 1).bit_length()
