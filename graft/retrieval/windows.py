"""Split long texts into windows; the score of a text is that of its best window."""

import numpy as np


def edges(length: int, max_length: int) -> list[tuple[int, int]]:
    """Start and end of windows of nearly equal length, at most `max_length`; one if empty."""
    count = max(1, -(-length // max_length))
    places = [length * number // count for number in range(count + 1)]
    return list(zip(places, places[1:], strict=False))


def best(scores: np.ndarray, counts: list[int]) -> np.ndarray:
    """The maximum of each text's window scores, float [texts]; `counts` are windows per text."""
    if not counts:
        return np.zeros(0, np.float32)
    return np.maximum.reduceat(scores, np.cumsum([0, *counts[:-1]]))
