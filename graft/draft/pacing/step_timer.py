"""Measures steps: from the start of one to the start of the next with the same sequences.

The last step of a sequence ends when its tokens arrive, plus the usual time between arrival and the
next start: the next step belongs to other sequences and may start much later.
"""

from collections.abc import Callable
from typing import NamedTuple


class StepSample(NamedTuple):
    """Tokens that a step generated, all sequences together, and its seconds."""

    tokens: int
    seconds: float


class StepTimer:
    """Call `begin` before each step and `add_tokens` when its tokens arrive."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sequences: list[int] | None = None
        self._begun_at = self._tokens_at = self._between = 0.0
        self._tokens = 0
        self._closed = True

    def begin(self, sequences: list[int]) -> StepSample | None:
        """Start a step of these sequences; return the one before, or None if its end is unknown."""
        now, last = self._clock(), None
        if sequences == self._sequences:
            last = StepSample(self._tokens, now - self._begun_at)
            self._between = now - self._tokens_at
        elif self._closed and self._sequences is not None:
            last = StepSample(self._tokens, self._tokens_at + self._between - self._begun_at)
        self._sequences, self._begun_at, self._tokens, self._closed = sequences, now, 0, False
        return last if last and last.tokens > 0 and last.seconds > 0 else None

    def add_tokens(self, count: int) -> None:
        """The step generated so many tokens."""
        if not self._closed:
            self._tokens += count
            self._tokens_at = self._clock()

    def close(self) -> None:
        """A sequence finished: tokens that arrive before the next `begin` do not count."""
        self._closed = True
