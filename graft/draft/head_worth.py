"""Which tree of a draft head pays: as wide and deep as raises the tokens per second of a round.

A head runs without asking the host in between, so the shape of its trees is decided before: from
the rates at which its choices of each rank came true (`ranks.py`), what its levels cost here, and
what the target's step costs with the best of its nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.draft.budget import MARGIN
from graft.draft.drafter import Budget
from graft.draft.head_growth import Beam
from graft.draft.ranks import RANKS, Ranks, expected_levels
from graft.draft.worth import TRIAL_SHARE
from graft.models.step_costs import StepCosts

WIDTHS = (1, 2, 4, 10)
DEPTHS = (1, 2, 4, 6)  # a GPU captures every shape anew: few will do
TRIAL = Beam((1,), RANKS, keeps_all=True)


@dataclass(frozen=True, slots=True)
class Paying:
    """Shapes that pay; `costs` are those of a head's levels, by nodes and context."""

    costs: StepCosts

    def choose(self, ranks: Sequence[Ranks], length: int, budget: Budget) -> Beam | None:
        """The best shape for so many sequences, if any is worth its time."""
        rates = np.mean([each.rates for each in ranks], 0)
        plain = budget.certain / float(budget.seconds[0])
        best, found = MARGIN * plain, None
        for width in WIDTHS:
            depth, rate = self._best_depth(rates, width, len(ranks), length, budget)
            if rate > best:
                best, found = rate, Beam((width,) * depth, RANKS, keeps_all=True)
        return found

    def trial(self, sequences: int, length: int, budget: Budget) -> tuple[float, float]:
        """What the smallest draft costs, and what a plain step adds to what it may cost."""
        return self.costs.step(length, sequences), TRIAL_SHARE * float(budget.seconds[0])

    def _best_depth(  # noqa: PLR0913
        self, rates: np.ndarray, width: int, sequences: int, length: int, budget: Budget
    ) -> tuple[int, float]:
        """How deep to go with this width, and the tokens per second of that."""
        most = min(budget.nodes, (len(budget.seconds) - 1) // sequences)
        nodes, drafting, best = np.empty(0), 0.0, (0, 0.0)
        for level, promised in enumerate(expected_levels(rates, width, DEPTHS[-1])):
            drafting += self.costs.step(length, sequences * (width if level else 1))
            nodes = -np.sort(-np.concatenate([nodes, promised]))[:most]
            if level + 1 not in DEPTHS:
                continue
            tokens = budget.certain + sequences * np.cumsum(nodes)
            verifying = budget.seconds[sequences : sequences * len(nodes) + 1 : sequences]
            rate = float(np.max(tokens / (drafting + verifying), initial=0.0))
            best = max(best, (level + 1, rate), key=lambda each: each[1])
        return best


@dataclass(frozen=True, slots=True)
class Always:
    """The papers' way: the same shape, whatever it costs."""

    beam: Beam

    def choose(self, ranks: Sequence[Ranks], length: int, budget: Budget) -> Beam:  # noqa: ARG002
        """See Paying."""
        return self.beam

    def trial(self, sequences: int, length: int, budget: Budget) -> tuple[float, float]:  # noqa: ARG002
        """See Paying."""
        return 0.0, 0.0
