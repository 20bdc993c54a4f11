"""Depths, ancestors and path products from a tree's parents; compiled, as every step uses them."""

import numpy as np
from numba import njit


@njit(cache=True)
def depths(parents: np.ndarray) -> np.ndarray:
    """[N] int64: the distance from node 0; parents come before their children."""
    found = np.zeros(len(parents), np.int64)
    for i in range(1, len(parents)):
        found[i] = found[parents[i]] + 1
    return found


@njit(cache=True)
def ancestors(parents: np.ndarray) -> np.ndarray:
    """[N, N] uint8: row i is 1 at i and at its ancestors; parents come before their children."""
    # Loops instead of row assignments: numba compiles them in a tenth of the time.
    found = np.zeros((len(parents), len(parents)), np.uint8)
    for i in range(len(parents)):
        if i > 0:
            for j in range(parents[i] + 1):
                found[i, j] = found[parents[i], j]
        found[i, i] = 1
    return found


@njit(cache=True)
def path_products(parents: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """[N] float64: the product of the factors from below node 0 down to each node."""
    found = np.ones(len(parents))
    for i in range(1, len(parents)):
        found[i] = found[parents[i]] * factors[i]
    return found


@njit(cache=True)
def strongest_nodes(scores: np.ndarray, count: int) -> np.ndarray:
    """[n + 1] int64, ascending: node 0 and the n <= `count` others with the highest scores above 0
    (ties: lower number)."""
    best = np.empty(count + 1, np.int64)  # by descending score
    found = 0
    for node in range(1, len(scores) if count > 0 else 1):
        if scores[node] <= 0 or (found == count and scores[node] <= scores[best[count - 1]]):
            continue
        found = min(found + 1, count)
        place = found - 1
        while place > 0 and scores[best[place - 1]] < scores[node]:
            best[place] = best[place - 1]
            place -= 1
        best[place] = node
    best[found] = 0
    return np.sort(best[: found + 1])
