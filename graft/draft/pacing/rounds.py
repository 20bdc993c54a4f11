"""How long rounds take: from where one begins to where the next one of the same sequences does; of
the last one, to where its tokens came, and what usually lies between.
"""

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
        self._since = self._came = 0.0
        self._tokens, self._between = 0, 0.0
        self._over = True  # nothing comes that belongs to the round

    def begin(self, whose: Hashable) -> Round | None:
        """A round of these sequences begins. The one before it, which ends so, unless it was of
        others: then it was over when somebody had finished; None if that is not known, or it
        brought nothing."""
        now = self._clock()
        last = None
        if whose == self._whose:
            last = Round(self._tokens, now - self._since)
            self._between = now - self._came
        elif self._whose is not None and self._over:
            last = Round(self._tokens, self._came + self._between - self._since)
        self._whose, self._since, self._tokens, self._over = whose, now, 0, False
        return last if last and last.tokens > 0 and last.seconds > 0 else None

    def are_of(self, whose: Hashable) -> bool:
        """Whether the one under way is of these sequences."""
        return whose == self._whose and not self._over

    def came(self, tokens: int) -> None:
        """So many tokens became final."""
        if not self._over:
            self._tokens += tokens
            self._came = self._clock()

    def finished(self) -> None:
        """Somebody has finished: what comes before the next round begins is of others."""
        self._over = True
