"""Whether drafts keep what they promise, by the clock.

What steps cost is measured once, on a machine that may be busier or idler now, and what drafts
promise is an estimate. So rounds with a draft and rounds without one are held against what was
expected of them; what counts is how much better or worse the first ones do than the others.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from graft.draft.pacing.rounds import LONGEST, Round, Rounds

PRIOR = 8.0  # rounds that an expectation nobody has tested yet is worth
FADE = 0.98  # weight of a round one round later


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a round: its tokens and its seconds."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class _Kept:
    """Of rounds of one kind: the tokens per second there were, as a share of those expected."""

    def __init__(self) -> None:
        self._tokens = self._seconds = PRIOR  # both in parts of what was expected

    def add(self, expected: Expected, real: Round) -> None:
        self._tokens = FADE * self._tokens + real.tokens / expected.tokens
        self._seconds = FADE * self._seconds + min(real.seconds / expected.seconds, LONGEST)

    @property
    def share(self) -> float:
        return self._tokens / self._seconds


class Ledger:
    """Told what rounds are expected to be, when they begin and how many tokens they bring."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._rounds = Rounds(clock)
        self._with, self._without = _Kept(), _Kept()
        self._expected: Expected | None = None
        self._drafted = False

    @property
    def worth(self) -> float:
        """What a draft's promise is worth: 1 where rounds with drafts go as expected, compared with
        rounds without."""
        return self._with.share / self._without.share

    def begin(self, whose: Hashable) -> None:
        """A round of these sequences begins; if the last one was theirs too, it ends."""
        last = self._rounds.begin(whose)
        if last and self._expected:
            (self._with if self._drafted else self._without).add(self._expected, last)
        self._expected = None

    def expect(self, expected: Expected, *, drafted: bool) -> None:
        """What the round that has just begun will bring."""
        self._expected, self._drafted = expected, drafted

    def came(self, tokens: int) -> None:
        """So many tokens became final."""
        self._rounds.came(tokens)
