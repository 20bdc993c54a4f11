"""How many nodes pay: as many as raise the expected tokens per second."""

import numpy as np

from graft.draft.drafter import Budget

MARGIN = 1.03  # a tree must promise this much more than none: drafting costs time, estimates err


def paying_nodes(scores: np.ndarray, seconds: np.ndarray) -> int:
    """How many of the nodes (path probabilities, best first) to keep.

    A step over the best n nodes and the root yields 1 + the sum of their path probabilities in
    expectation and costs seconds[n + 1]. The best rate wins; of equal ones the smaller tree.
    """
    most = min(len(scores), len(seconds) - 2)
    expected = 1 + np.concatenate([[0.0], np.cumsum(scores[:most], dtype=np.float64)])
    rates = expected / seconds[1 : most + 2]
    best = int(np.argmax(rates))
    return best if rates[best] > MARGIN * rates[0] else 0


def as_many_as_pay(scores: np.ndarray, budget: Budget) -> int:
    """How many of the best nodes are worth their time, within the budget."""
    return min(paying_nodes(scores, budget.seconds), budget.nodes)


def as_many_as_fit(scores: np.ndarray, budget: Budget) -> int:
    """The papers' way: everything the drafter found, up to a fixed number."""
    return min(len(scores), budget.nodes)
