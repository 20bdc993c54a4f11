"""The progress of a run and the learning rate: linear warm-up, then cosine decay to 0."""

from dataclasses import dataclass
from math import cos, pi

from graft.train.settings import Settings


@dataclass(frozen=True, slots=True)
class Schedule:
    """By steps, or by the training seconds of all sessions together."""

    steps: int
    seconds: float
    warmup: float
    peak: float

    @classmethod
    def of(cls, settings: Settings) -> "Schedule":
        """The schedule of these settings."""
        return cls(settings.steps, settings.minutes * 60, settings.warmup, settings.learning_rate)

    def progress(self, step: int, elapsed: float) -> float:
        """From 0 to 1."""
        return min(1.0, step / self.steps if self.steps else elapsed / self.seconds)

    def rate(self, progress: float) -> float:
        """The learning rate at this progress."""
        if progress < self.warmup:
            return self.peak * max(progress, 0.01 * self.warmup) / self.warmup
        return self.peak * (1 + cos(pi * (progress - self.warmup) / (1 - self.warmup))) / 2
