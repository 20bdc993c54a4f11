"""How many nodes pay: as many as raise the expected tokens per second."""

import numpy as np

from graft.draft.drafter import Budget
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import best_first, keep


def paying_nodes(scores: np.ndarray, seconds: np.ndarray) -> int:
    """How many of the nodes (scores best first, root excluded) to keep.

    A step over the best n nodes and the root yields 1 + the sum of their path probabilities in
    expectation and costs seconds[n + 1]. The best rate wins; of equal ones the smaller tree.
    """
    most = min(len(scores), len(seconds) - 2)
    expected = 1 + np.concatenate([[0.0], np.cumsum(scores[:most], dtype=np.float64)])
    return int(np.argmax(expected / seconds[1 : most + 2]))


def cut_to_pay(tree: DraftTree, budget: Budget) -> DraftTree:
    """The part of the tree that is worth its time, within the budget."""
    order = best_first(tree)
    nodes = min(paying_nodes(tree.scores[order[1:]], budget.seconds), budget.nodes)
    return keep(tree, order[: nodes + 1])


def cut_to_limit(tree: DraftTree, budget: Budget) -> DraftTree:
    """The papers' way: everything the drafter found, up to a fixed number."""
    return keep(tree, best_first(tree)[: budget.nodes + 1])
