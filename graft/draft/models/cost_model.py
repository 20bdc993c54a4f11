"""Whether one more level of a draft saves time, with the draft model's seconds counted too.

A step over n draft tokens yields `budget.base_tokens` tokens plus the sum of their path
probabilities, and costs the draft model's forwards so far plus the target's step over n nodes.
Before every forward of the draft model, the expected tokens per second of the step as it stands
are compared with those after one more level. A level is drafted only for the sequences that raise
the rate, the most promising first.

The draft model prefills a prompt if drafts accepted as often as those of earlier requests would
save more than the prefill costs, over an answer of their average length. Sequences without drafts
are tried again within `TRIAL_SHARE` of the time, because texts change. A trial must first process
the tokens that were skipped, so a sequence whose trials would cost more than that share gets no
drafts until it finishes. Prompts of new requests are tried again within the same share of all
requests' time.
"""

from collections.abc import Sequence

import numpy as np

from graft.draft.drafter import Budget
from graft.draft.pacing.budget import MARGIN
from graft.models.step_costs import StepCosts

TRIAL_SHARE = 0.03  # of plain decoding's time, for drafts that are not expected to save time


class CostModel:
    """The expected tokens and seconds of one step while its drafts grow."""

    def __init__(
        self, budget: Budget, costs: StepCosts, length: int, *, overhead: float = 0.0
    ) -> None:
        self._budget, self._costs, self._length = budget, costs, length
        self._overhead = overhead  # seconds of a forward beyond the measured step
        self._spent, self._nodes, self._tokens = 0.0, 0, float(budget.base_tokens)

    def forward_seconds(self, rows: int, sequences: int = 1) -> float:
        """Of the draft model, over so many rows of so many sequences."""
        return self._costs.step(self._length, rows, sequences) + self._overhead

    def add_forward(self, rows: int, sequences: int = 1) -> None:
        """Count such a forward as spent."""
        self._spent += self.forward_seconds(rows, sequences)

    @property
    def trial_seconds(self) -> float:
        """What a plain step of one sequence adds to the allowance of its next trial."""
        return TRIAL_SHARE * float(self._budget.seconds[0]) / self._budget.base_tokens

    def saved_seconds(self, depth: int, sequences: int, acceptance: float) -> float:
        """Seconds per token that drafts of the best depth, up to `depth`, would save at this
        acceptance rate; 0 where they would save none."""
        best = self._rates(depth, sequences, acceptance).max()
        plain = self._budget.base_tokens / self._budget.seconds[0]
        return max(0.0, float(1 / plain - MARGIN / best))

    def best_depth(self, depth: int, sequences: int, acceptance: float) -> int:
        """The fastest depth, up to `depth`, at this acceptance rate."""
        return 1 + int(np.argmax(self._rates(depth, sequences, acceptance)))

    def _rates(self, depth: int, sequences: int, acceptance: float) -> np.ndarray:
        """Tokens per second of steps with drafts of 1, 2, ... `depth` levels."""
        levels = np.arange(1, depth + 1)
        nodes = np.minimum(sequences * levels, len(self._budget.seconds) - 1)
        tokens = self._budget.base_tokens + sequences * np.cumsum(acceptance**levels)
        drafting = levels * self.forward_seconds(sequences, sequences)
        return tokens / (drafting + self._budget.seconds[nodes])

    def set_draft(self, scores: Sequence[np.ndarray]) -> None:
        """Record the drafts so far: the path probabilities of each tree's nodes."""
        pooled = -np.sort(-np.concatenate(scores))
        count = min(len(pooled), len(self._budget.seconds) - 1)
        gained = np.concatenate([[0.0], np.cumsum(pooled[:count], dtype=np.float64)])
        tokens = self._budget.base_tokens + gained
        self._nodes = int(np.argmax(tokens / (self._spent + self._budget.seconds[: count + 1])))
        self._tokens = float(tokens[self._nodes])

    def select(self, gains: Sequence[float], rows: Sequence[int]) -> list[int]:
        """The places of the sequences whose next level raises the step's rate.

        Each is expected to gain so many tokens and takes so many rows of the draft model.
        """
        if not gains:
            return []
        order = np.argsort(-np.array(gains), kind="stable")
        tokens = self._tokens + np.cumsum(np.array(gains)[order])
        nodes = np.minimum(self._nodes + 1 + np.arange(len(order)), len(self._budget.seconds) - 1)
        taken = np.cumsum(np.array(rows)[order]).tolist()
        drafting = [self.forward_seconds(each, place) for place, each in enumerate(taken, 1)]
        rates = tokens / (self._spent + np.array(drafting) + self._budget.seconds[nodes])
        now = self._tokens / (self._spent + float(self._budget.seconds[self._nodes]))
        min_rate = now if self._spent else MARGIN * now  # a step without drafts is the safe one
        best = int(np.argmax(rates))
        return order[: best + 1].tolist() if rates[best] > min_rate else []


class NoCostLimit:
    """Every level that the method has, whatever it costs; for presets with fixed numbers."""

    trial_seconds = 0.0

    def forward_seconds(self, rows: int, sequences: int = 1) -> float:
        """See CostModel."""
        return 0.0

    def add_forward(self, rows: int, sequences: int = 1) -> None:
        """See CostModel."""

    def saved_seconds(self, depth: int, sequences: int, acceptance: float) -> float:
        """See CostModel."""
        return np.inf

    def best_depth(self, depth: int, sequences: int, acceptance: float) -> int:
        """See CostModel."""
        return depth

    def set_draft(self, scores: Sequence[np.ndarray]) -> None:
        """See CostModel."""

    def select(self, gains: Sequence[float], rows: Sequence[int]) -> list[int]:
        """See CostModel."""
        return list(range(len(gains)))


Costs = CostModel | NoCostLimit
