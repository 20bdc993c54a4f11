"""Long texts in windows: encoders read little at a time, and a mean over much says little.

A text is as near as its nearest window.
"""

import numpy as np


def edges(length: int, most: int) -> list[tuple[int, int]]:
    """From where to where: as even windows as can be of at most `most`; one of nothing."""
    count = max(1, -(-length // most))
    places = [length * number // count for number in range(count + 1)]
    return list(zip(places, places[1:], strict=False))


def best(scores: np.ndarray, counts: list[int]) -> np.ndarray:
    """The best window's score of every text, float [texts], from those of all their windows one
    after another; each text has `counts` of them."""
    if not counts:
        return np.zeros(0, np.float32)
    return np.maximum.reduceat(scores, np.cumsum([0, *counts[:-1]]))
