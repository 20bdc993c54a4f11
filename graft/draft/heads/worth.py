"""Which tree of a draft head pays: as wide and deep as raises the tokens per second of a round.

A head runs without asking the host in between, so the shape of its trees is decided before: from
the rates at which its choices of each rank came true (`ranks.py`), what its levels and what a round
besides them cost here, and what the target's step costs with the best of its nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.draft.drafter import Budget
from graft.draft.heads.growth import Beam
from graft.draft.heads.ranks import RANKS, Ranks, expected_levels
from graft.draft.pacing.budget import MARGIN
from graft.draft.pacing.ledger import Expected
from graft.models.step_costs import StepCosts

WIDTHS = (1, 2, 4, 10)
DEPTHS = (1, 2, 3, 4, 6)  # a GPU captures every shape anew: few will do
TRIAL_SHARE = 0.005  # of plain decoding's time that may be lost by drafts not expected to pay
LEAST_LOSS = 0.1  # of such a draft's time, however little is missing
HOPELESS = 0.5  # of its time: who is expected to lose more need not be followed


def _shape(width: int, depth: int) -> Beam:
    return Beam((width,) * depth, RANKS, keeps_all=True)


SHAPES = [_shape(width, depth) for width in WIDTHS for depth in DEPTHS]
TRIAL = _shape(1, 1)


@dataclass(frozen=True, slots=True)
class Draft:
    """A shape to grow, and what a round with it is expected to be."""

    beam: Beam
    expected: Expected


@dataclass(frozen=True, slots=True)
class Trial:
    """Of a draft that is not expected to pay: the seconds it would lose, those that a plain step
    adds to what may be lost, and whether it is far from paying."""

    draft: Draft
    loss: float
    allowance: float
    hopeless: bool


@dataclass(frozen=True, slots=True)
class Paying:
    """Shapes that pay; `costs` are those of a head's levels, by nodes and context, `overhead` what
    a round takes besides them, by sequences."""

    costs: StepCosts
    overhead: StepCosts | None = None

    def choose(
        self, ranks: Sequence[Ranks], length: int, budget: Budget, worth: float = 1.0
    ) -> Draft | None:
        """The best shape for so many sequences, if any is worth its time; promises count for so
        much of what they say."""
        rates = np.mean([each.rates for each in ranks], 0)
        best, found = MARGIN * budget.base_tokens / float(budget.seconds[0]), None
        for width in WIDTHS:
            depth, expected = self._best_depth(rates, width, len(ranks), length, budget)
            if worth * expected.rate > best:
                best, found = worth * expected.rate, Draft(_shape(width, depth), expected)
        return found

    def trial(
        self, ranks: Sequence[Ranks], length: int, budget: Budget, worth: float = 1.0
    ) -> Trial:
        """Of the smallest draft: the less is missing for it to pay, the more often it is tried."""
        sequences, rates = len(ranks), np.mean([each.rates for each in ranks], 0)
        drafting = self._besides(length, sequences)
        drafting += self.costs.step(length, sequences, sequences)
        expected = self._expected(rates, drafting, sequences, budget)
        seconds = expected.seconds / min(worth, 1.0)  # as long as it really takes
        missing = 1 - worth * expected.rate * float(budget.seconds[0]) / budget.base_tokens
        most = drafting + seconds - expected.seconds
        loss = max(LEAST_LOSS * drafting, min(most, missing * seconds))
        return Trial(
            Draft(TRIAL, expected),
            loss,
            TRIAL_SHARE * float(budget.seconds[0]),
            loss > HOPELESS * drafting,
        )

    def _besides(self, length: int, sequences: int) -> float:
        return self.overhead.step(length, sequences) if self.overhead else 0.0

    def _best_depth(  # noqa: PLR0913
        self, rates: np.ndarray, width: int, sequences: int, length: int, budget: Budget
    ) -> tuple[int, Expected]:
        """How deep to go with this width before it gets worse, and what to expect then."""
        nodes, drafting = np.empty(0), self._besides(length, sequences)
        best = 0, Expected(0.0, 1.0)
        for level, promised in enumerate(expected_levels(rates, width, DEPTHS[-1])):
            drafting += self.costs.step(length, sequences * (width if level else 1), sequences)
            nodes = -np.sort(-np.concatenate([nodes, promised]))
            if level + 1 not in DEPTHS:
                continue
            expected = self._expected(nodes, drafting, sequences, budget)
            if expected.rate <= best[1].rate:
                break
            best = level + 1, expected
        return best

    def _expected(
        self, nodes: np.ndarray, drafting: float, sequences: int, budget: Budget
    ) -> Expected:
        """The best round that took so long to draft nodes which promise this, falling, for each
        sequence, and checks some of them."""
        most = min(budget.nodes, (len(budget.seconds) - 1) // sequences, len(nodes))
        if not most:
            return Expected(budget.base_tokens, drafting + float(budget.seconds[0]))
        tokens = budget.base_tokens + sequences * np.cumsum(nodes[:most])
        seconds = drafting + budget.seconds[sequences : sequences * most + 1 : sequences]
        best = int(np.argmax(tokens / seconds))
        return Expected(float(tokens[best]), float(seconds[best]))


def plain(budget: Budget) -> Expected:
    """A round without a draft."""
    return Expected(budget.base_tokens, float(budget.seconds[0]))
