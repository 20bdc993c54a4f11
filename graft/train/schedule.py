"""The progress of a run and the learning rate: linear warm-up, then cosine decay to 0."""

from math import cos, pi

from graft.train.settings import Settings


def progress(settings: Settings, step: int, elapsed: float) -> float:
    """From 0 to 1: by steps, or by the training seconds of all sessions together."""
    return min(1.0, step / settings.steps if settings.steps else elapsed / (60 * settings.minutes))


def learning_rate(settings: Settings, done: float) -> float:
    """The learning rate at this progress."""
    peak, warmup = settings.learning_rate, settings.warmup
    if done < warmup:
        return peak * max(done, 0.01 * warmup) / warmup
    return peak * (1 + cos(pi * (done - warmup) / (1 - warmup))) / 2
