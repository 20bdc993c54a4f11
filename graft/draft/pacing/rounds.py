"""How long rounds take: from where one begins to where the next one of the same sequences does."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

LONGEST = 8.0  # times what was expected: a round that takes longer was held up by something else


@dataclass(slots=True)
class Round:
    """What it brought, in tokens, and took."""

    tokens: int
    seconds: float


class Rounds:
    """Told when a round begins and how many tokens come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._whose: Hashable = None
        self._since, self._tokens = 0.0, 0

    def begin(self, whose: Hashable) -> Round | None:
        """A round of these sequences begins. Their last one, which ends so; None where that was
        of others, or brought nothing."""
        now = self._clock()
        last = Round(self._tokens, now - self._since)
        known = whose == self._whose and last.tokens > 0 and last.seconds > 0
        self._whose, self._since, self._tokens = whose, now, 0
        return last if known else None

    def pause(self) -> None:
        """A round begins that is not timed."""
        self._whose = None

    def came(self, tokens: int) -> None:
        """So many tokens became final."""
        self._tokens += tokens
