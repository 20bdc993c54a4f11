"""Whether drafting on is worth its time: the draft model's seconds count like the target's.

A round over n guesses yields `budget.base_tokens` tokens and the sum of the guesses' path
probabilities, and costs the draft model's forwards so far plus the target's step over n nodes.
Before every forward of the draft model the round is weighed as it stands against the round with
one more level: expected tokens per second of all of it. A level is drafted only for the sequences
for which that rises, the most promising first. So a poor or slow draft model is soon left alone,
and a good one goes as deep as pays.

The prompt is read if drafts that come true as often as those of the requests before would save
more than that takes, over an answer as long as theirs. What is left alone is tried again as often
as `TRIAL_SHARE` of the time allows: texts change. It then has to read what it missed, so where
reading along would take more than that share it stays alone until the request ends; and the
prompts of new requests are read again as often as that share of all requests' time allows.
"""

from collections.abc import Sequence

import numpy as np

from graft.draft.drafter import Budget
from graft.draft.pacing.budget import MARGIN
from graft.models.step_costs import StepCosts

TRIAL_SHARE = 0.03  # of plain decoding's time that goes into drafts which are not expected to pay


class Account:
    """One round: what was spent on drafting and what verifying would yield now."""

    def __init__(
        self, budget: Budget, costs: StepCosts, length: int, *, overhead: float = 0.0
    ) -> None:
        self._budget, self._costs, self._length = budget, costs, length
        self._overhead = overhead  # seconds that a forward costs besides
        self._spent, self._nodes, self._tokens = 0.0, 0, float(budget.base_tokens)

    def price(self, rows: int, sequences: int = 1) -> float:
        """Seconds of a forward of the draft model over so many rows of so many sequences."""
        return self._costs.step(self._length, rows, sequences) + self._overhead

    def pay(self, rows: int, sequences: int = 1) -> None:
        """Such a forward was made."""
        self._spent += self.price(rows, sequences)

    @property
    def trial_seconds(self) -> float:
        """What a plain step of one sequence adds to what its next trial may cost."""
        return TRIAL_SHARE * float(self._budget.seconds[0]) / self._budget.base_tokens

    def gain(self, depth: int, sequences: int, hope: float) -> float:
        """Seconds that drafts of the best depth, up to `depth`, for so many sequences would save
        per token if each guess came true with this probability; 0 where they would not pay."""
        best = self._rates(depth, sequences, hope).max()
        plain = self._budget.base_tokens / self._budget.seconds[0]
        return max(0.0, float(1 / plain - MARGIN / best))

    def levels(self, depth: int, sequences: int, hope: float) -> int:
        """The best depth, up to `depth`, if each guess came true with this probability."""
        return 1 + int(np.argmax(self._rates(depth, sequences, hope)))

    def _rates(self, depth: int, sequences: int, hope: float) -> np.ndarray:
        """Tokens per second of rounds with one, two, ... `depth` levels."""
        levels = np.arange(1, depth + 1)
        nodes = np.minimum(sequences * levels, len(self._budget.seconds) - 1)
        tokens = self._budget.base_tokens + sequences * np.cumsum(hope**levels)
        drafting = levels * self.price(sequences, sequences)
        return tokens / (drafting + self._budget.seconds[nodes])

    def weigh(self, scores: Sequence[np.ndarray]) -> None:
        """Note what the best guesses so far (path probabilities of each tree) would yield."""
        pooled = -np.sort(-np.concatenate(scores))
        most = min(len(pooled), len(self._budget.seconds) - 1)
        gained = np.concatenate([[0.0], np.cumsum(pooled[:most], dtype=np.float64)])
        tokens = self._budget.base_tokens + gained
        self._nodes = int(np.argmax(tokens / (self._spent + self._budget.seconds[: most + 1])))
        self._tokens = float(tokens[self._nodes])

    def paying(self, gains: Sequence[float], rows: Sequence[int]) -> list[int]:
        """Whom to draft one more level for: the places of those that make the round better.

        Each is expected to gain so many tokens and takes so many rows of the draft model.
        """
        if not gains:
            return []
        order = np.argsort(-np.array(gains), kind="stable")
        tokens = self._tokens + np.cumsum(np.array(gains)[order])
        nodes = np.minimum(self._nodes + 1 + np.arange(len(order)), len(self._budget.seconds) - 1)
        taken = np.cumsum(np.array(rows)[order]).tolist()
        drafting = [self.price(each, place) for place, each in enumerate(taken, 1)]
        rates = tokens / (self._spent + np.array(drafting) + self._budget.seconds[nodes])
        now = self._tokens / (self._spent + float(self._budget.seconds[self._nodes]))
        least = now if self._spent else MARGIN * now  # not to draft at all is the safe way
        best = int(np.argmax(rates))
        return order[: best + 1].tolist() if rates[best] > least else []


class Unlimited:
    """The papers' way: every level that the method has, whatever it costs."""

    trial_seconds = 0.0

    def price(self, rows: int, sequences: int = 1) -> float:  # noqa: ARG002
        """See Account."""
        return 0.0

    def pay(self, rows: int, sequences: int = 1) -> None:
        """See Account."""

    def gain(self, depth: int, sequences: int, hope: float) -> float:  # noqa: ARG002
        """See Account."""
        return np.inf

    def levels(self, depth: int, sequences: int, hope: float) -> int:  # noqa: ARG002
        """See Account."""
        return depth

    def weigh(self, scores: Sequence[np.ndarray]) -> None:
        """See Account."""

    def paying(self, gains: Sequence[float], rows: Sequence[int]) -> list[int]:  # noqa: ARG002
        """See Account."""
        return list(range(len(gains)))
