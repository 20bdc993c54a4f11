"""Which tree shape of a draft head raises tokens per second the most.

A head's levels run without the host in between, so the shape is chosen before: from the acceptance
rates by rank (`ranks.py`), the measured costs of the head's levels and of the rest of a draft, and
the cost of the target's step over the best nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.draft.drafter import Budget
from graft.draft.heads.growth import Beam
from graft.draft.heads.ranks import RANKS, Ranks, expected_levels
from graft.draft.pacing.budget import MARGIN
from graft.models.step_costs import StepCosts

WIDTHS = (1, 2, 4, 10)
DEPTHS = (1, 2, 3, 4, 6)  # few, because a GPU captures a graph for every shape
TRIAL_SHARE = 0.005  # of plain decoding's time that trials may lose
MIN_LOSS = 0.1  # of a trial's drafting time, however close it is to saving time
MAX_LOSS = 0.5  # of its drafting time: above it, most new sequences are skipped


def _shape(width: int, depth: int) -> Beam:
    return Beam((width,) * depth, RANKS, keeps_all=True)


SHAPES = [_shape(width, depth) for width in WIDTHS for depth in DEPTHS]
TRIAL = _shape(1, 1)


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens and seconds of a step."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Trial:
    """The smallest draft where none is expected to save time: the seconds it loses, those that a
    plain step adds to the trials' allowance, and whether the loss exceeds MAX_LOSS."""

    loss: float
    allowance: float
    too_slow: bool


@dataclass(frozen=True, slots=True)
class ShapeChooser:
    """Chooses shapes; `costs` are those of a head's levels by nodes and context, `overhead` the
    rest of a draft by sequences."""

    costs: StepCosts
    overhead: StepCosts | None = None

    def choose(self, ranks: Sequence[Ranks], length: int, budget: Budget) -> Beam | None:
        """The fastest shape for these sequences; None where plain decoding is faster."""
        rates = np.mean([each.rates for each in ranks], 0)
        best, found = MARGIN * budget.base_tokens / float(budget.seconds[0]), None
        for width in WIDTHS:
            depth, expected = self._best_depth(rates, width, len(ranks), length, budget)
            if expected.rate > best:
                best, found = expected.rate, _shape(width, depth)
        return found

    def trial(self, ranks: Sequence[Ranks], length: int, budget: Budget) -> Trial:
        """A trial of the smallest draft; the smaller its loss, the more often it can run."""
        sequences, rates = len(ranks), np.mean([each.rates for each in ranks], 0)
        drafting = self._overhead_seconds(length, sequences)
        drafting += self.costs.step(length, sequences, sequences)
        expected = self._expected(rates, drafting, sequences, budget)
        missing = 1 - expected.rate * float(budget.seconds[0]) / budget.base_tokens
        loss = max(MIN_LOSS * drafting, min(drafting, missing * expected.seconds))
        allowance = TRIAL_SHARE * float(budget.seconds[0])
        return Trial(loss, allowance, loss > MAX_LOSS * drafting)

    def _overhead_seconds(self, length: int, sequences: int) -> float:
        return self.overhead.step(length, sequences) if self.overhead else 0.0

    def _best_depth(
        self, rates: np.ndarray, width: int, sequences: int, length: int, budget: Budget
    ) -> tuple[int, Expected]:
        """The depth at which the rate of this width stops rising, and what to expect there."""
        nodes, drafting = np.empty(0), self._overhead_seconds(length, sequences)
        best = 0, Expected(0.0, 1.0)
        for level, probabilities in enumerate(expected_levels(rates, width, DEPTHS[-1])):
            drafting += self.costs.step(length, sequences * (width if level else 1), sequences)
            nodes = -np.sort(-np.concatenate([nodes, probabilities]))
            if level + 1 not in DEPTHS:
                continue
            if level + 1 > budget.nodes:  # a tree of n nodes has at most n levels
                break
            expected = self._expected(nodes, drafting, sequences, budget)
            if expected.rate <= best[1].rate:
                break
            best = level + 1, expected
        return best

    def _expected(
        self, nodes: np.ndarray, drafting: float, sequences: int, budget: Budget
    ) -> Expected:
        """The fastest step over some of each sequence's nodes, given their path probabilities in
        descending order and the seconds of drafting."""
        count = min(budget.nodes, (len(budget.seconds) - 1) // sequences, len(nodes))
        if not count:
            return Expected(budget.base_tokens, drafting + float(budget.seconds[0]))
        tokens = budget.base_tokens + sequences * np.cumsum(nodes[:count])
        seconds = drafting + budget.seconds[sequences : sequences * count + 1 : sequences]
        best = int(np.argmax(tokens / seconds))
        return Expected(float(tokens[best]), float(seconds[best]))
