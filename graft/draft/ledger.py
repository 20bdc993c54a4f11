"""Whether drafts keep what they promise, by the clock.

What steps cost is measured once, on a machine that may be busier or idler now, and what drafts
promise is an estimate. So rounds with a draft and rounds without one are held against what was
expected of them; what counts is how much better or worse the first ones do than the others.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

PRIOR = 8.0  # rounds that an expectation nobody has tested yet is worth
FADE = 0.98  # weight of a round one round later
LONGEST = 8.0  # times what was expected: a round that takes longer was held up by something else


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a round: its tokens and its seconds."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class _Rounds:
    """Of one kind: the tokens per second there were, as a share of those expected."""

    def __init__(self) -> None:
        self._tokens = self._seconds = PRIOR  # both in parts of what was expected

    def add(self, expected: Expected, tokens: int, seconds: float) -> None:
        self._tokens = FADE * self._tokens + tokens / expected.tokens
        self._seconds = FADE * self._seconds + min(seconds / expected.seconds, LONGEST)

    @property
    def kept(self) -> float:
        return self._tokens / self._seconds


class Ledger:
    """Told when a round begins and how many tokens it brought; a round ends where the next one of
    the same sequences begins."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._with, self._without = _Rounds(), _Rounds()
        self._whose: Hashable = None
        self._since, self._tokens = 0.0, 0
        self._expected: Expected | None = None
        self._drafted = False

    @property
    def worth(self) -> float:
        """What a draft's promise is worth: 1 where rounds with drafts go as expected, compared with
        rounds without."""
        return self._with.kept / self._without.kept

    def begin(self, whose: Hashable) -> None:
        """A round of these sequences begins; if the last one was theirs too, it ends."""
        now = self._clock()
        if self._expected and self._tokens and whose == self._whose:
            rounds = self._with if self._drafted else self._without
            rounds.add(self._expected, self._tokens, now - self._since)
        self._whose, self._since = whose, now
        self._expected, self._tokens = None, 0

    def expect(self, expected: Expected, *, drafted: bool) -> None:
        """What the round that has just begun will bring."""
        self._expected, self._drafted = expected, drafted

    def came(self, tokens: int) -> None:
        """So many tokens became final."""
        self._tokens += tokens
