"""What each way of drafting (an arm) yields: decayed tokens and time of its steps.

Tokens count per sequence. Time counts in plain steps of the cost table, so that neither the batch
size nor the context length moves an estimate. Every kind of step (batch size, sampled or greedy,
with or without prefill) has an estimator of its own.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import inf

from graft.draft.pacing.step_timer import StepSample

DECAY = 0.97  # weight of a step one step later: 33 steps; one copy in ten steps still shows
OUTLIER_RATIO = 1.5  # times the usual plain step, twice that with drafts, whose nodes vary
MIN_STEPS = 4  # plain steps before drafting: the first is often a compilation or a cold cache
OVERHEAD_RATE = 0.2  # weight of a step's overhead in its mean: 5 steps with draft nodes
OVERHEAD_DECAY = 0.99  # per step without: an overhead that stopped all drafts is measured again


class Arm(IntEnum):
    """What drafts in a step."""

    PLAIN = 0
    LOOKUP = 1
    LOOKUP_AND_MODEL = 2


@dataclass(slots=True)
class ArmEstimate:
    """Decayed sums over an arm's steps. A step counts for at most `longest` times the usual one:
    one that another process held up would decide for hundreds."""

    longest: float
    steps: float = 0.0
    tokens: float = 0.0
    time: float = 0.0
    shortest: float = inf

    def add(self, tokens: float, time: float) -> None:
        """Count a step."""
        self.shortest = min(self.shortest, time)
        usual = self.time / self.steps if self.known else self.shortest
        self.steps = DECAY * self.steps + 1
        self.tokens = DECAY * self.tokens + tokens
        self.time = DECAY * self.time + min(time, self.longest * usual)
        if not self.known:  # the first steps are held against the shortest of them
            self.time = min(self.time, self.steps * self.longest * self.shortest)

    @property
    def known(self) -> bool:
        """Whether enough steps ran to compare other arms with it."""
        return self.steps > MIN_STEPS - 1


@dataclass(slots=True)
class Measured:
    """A step that ran: its arm, sequences, the table's seconds without and with its draft nodes;
    whether a plain one started ahead of the last tokens, and the arm that kept it from that."""

    arm: Arm
    sequences: int
    plain_seconds: float
    expected_seconds: float
    nodes: int
    ahead: bool = False
    blocked_by: Arm | None = None


class Estimator:
    """Estimates for one kind of step; `nearest` answers for arms that have not run yet.

    With `runs_ahead`, plain steps can start before the last tokens are known. Only those that did
    count as plain; until there are some, they take as long as the table says.
    """

    def __init__(self, nearest: "Estimator | None" = None, *, runs_ahead: bool = False) -> None:
        drafted = ArmEstimate(2 * OUTLIER_RATIO), ArmEstimate(2 * OUTLIER_RATIO)
        self.arms = ArmEstimate(OUTLIER_RATIO), *drafted
        self._overhead = 0.0
        self._nearest = nearest
        self._runs_ahead = runs_ahead
        if runs_ahead:
            for _ in range(MIN_STEPS):
                self.arms[Arm.PLAIN].add(1.0, 1.0)

    def knows(self, arm: Arm) -> bool:
        """Whether enough steps of an arm ran to compare others with it."""
        return self.arms[arm].known

    @property
    def slowdown(self) -> float:
        """Measured time of a plain step in the table's plain steps; 0 if none ran."""
        plain = self.arms[Arm.PLAIN]
        return plain.time / plain.steps if plain.steps else 0.0

    @property
    def overhead_seconds(self) -> float:
        """Seconds of a step with draft nodes beyond what the table says."""
        return max(self._overhead, 0.0)

    def time(self, arm: Arm) -> float:
        """Mean time of an arm's steps in plain steps; 1 if none ran.

        A drafted step takes at least as long as a plain one: a machine that was slower while plain
        steps ran does not make drafting better.
        """
        own = self.arms[arm]
        if not own.steps:
            return self._nearest.time(arm) if self._nearest else 1.0
        return max(own.time / (self.slowdown * own.steps), 1.0) if self.slowdown else 1.0

    def speed(self, arm: Arm) -> float:
        """Tokens of an arm in the time of a plain step; 1 if none ran."""
        own = self.arms[arm]
        if not own.steps:
            return self._nearest.speed(arm) if self._nearest else 1.0
        return own.tokens / own.steps / self.time(arm)

    def add(self, step: Measured, sample: StepSample) -> None:
        """Count a step."""
        tokens, time = sample.tokens / step.sequences, sample.seconds / step.plain_seconds
        if step.arm is Arm.PLAIN and self._runs_ahead and not step.ahead:
            return
        if step.arm is Arm.LOOKUP and self.slowdown and not self._runs_ahead:
            # Little more than the table says: else a few stalled steps would rule lookups out.
            expected = self.slowdown * step.expected_seconds / step.plain_seconds
            time = min(time, OUTLIER_RATIO * expected)
        self.arms[step.arm].add(tokens, time)
        if step.arm is Arm.LOOKUP and self.slowdown:
            self._add_overhead(step, sample.seconds / self.slowdown)

    def delay(self, step: Measured, sample: StepSample) -> float:
        """Plain steps that a plain step lost because it did not run ahead, at most 1."""
        return min(max(sample.seconds / step.plain_seconds / self.slowdown - 1, 0.0), 1.0)

    def _add_overhead(self, step: Measured, seconds: float) -> None:
        if not step.nodes:
            self._overhead *= OVERHEAD_DECAY
            return
        limit = step.plain_seconds
        beyond = min(max(seconds - step.expected_seconds, -limit), limit)
        self._overhead += OVERHEAD_RATE * (beyond - self._overhead)
