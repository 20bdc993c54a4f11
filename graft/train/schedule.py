"""How far a run is, and the learning rate there: a rise, then half a cosine down to nothing."""

from dataclasses import dataclass
from math import cos, pi

from graft.train.settings import Settings


@dataclass(frozen=True, slots=True)
class Schedule:
    """By steps, or by the seconds of all stretches together."""

    steps: int
    seconds: float
    warmup: float
    highest: float

    @classmethod
    def of(cls, settings: Settings) -> "Schedule":
        """As asked for."""
        return cls(settings.steps, settings.minutes * 60, settings.warmup, settings.learning_rate)

    def progress(self, step: int, elapsed: float) -> float:
        """From 0 to 1, where the run ends."""
        return min(1.0, step / self.steps if self.steps else elapsed / self.seconds)

    def rate(self, progress: float) -> float:
        """Of the step made there."""
        if progress < self.warmup:
            return self.highest * max(progress, 0.01 * self.warmup) / self.warmup
        return self.highest * (1 + cos(pi * (progress - self.warmup) / (1 - self.warmup))) / 2
