"""How many nodes pay: as many as raise the expected tokens per second of the whole step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numba import njit

from graft.draft.drafter import Budget
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import strongest

# Scores of each tree's nodes, best first, and what they may cost -> how many of each to keep
Choose = Callable[[Sequence[np.ndarray], Budget], list[int]]

MARGIN = 1.03  # a tree must promise this much more than none: drafting costs time, estimates err


def warm_up() -> None:
    """Compile the rule, or load it from the cache, so that the first request need not."""
    for trees in (1, 2):
        as_many_as_pay([np.ones(1, np.float32)] * trees, Budget(1, np.ones(2)))


def as_many_as_pay(scores: Sequence[np.ndarray], budget: Budget) -> list[int]:
    """For each tree how many of its nodes (path probabilities, best first) are worth their time,
    all trees weighed together: in a batch a node of one sequence costs time that all of them wait.

    A step over the best n nodes yields `budget.base_tokens` tokens + the sum of their path
    probabilities in expectation and costs seconds[n], plus `overhead_seconds` where n > 0. The
    best rate wins; of equal ones the smaller trees.
    """
    certain, besides = float(budget.base_tokens), float(budget.overhead_seconds)
    if len(scores) == 1:  # most often, and a step of a GPU waits for it
        most = min(len(scores[0]), budget.nodes)
        return [_best_count(scores[0], most, budget.seconds, certain, besides) if most else 0]
    capped = [each[: budget.nodes] for each in scores]
    ends = np.array([*accumulate(map(len, capped))])
    if not ends[-1]:
        return [0] * len(capped)
    together = np.concatenate(capped)
    return _best_counts(together, ends, budget.seconds, certain, besides).tolist()


@njit(cache=True, nogil=True)
def _best_count(scores, most, seconds, certain, besides):  # noqa: ANN001, ANN202  (numba)
    """How many of one list's first `most`, which fall."""
    plain = certain / seconds[0]
    tokens, best, highest = certain, 0, plain
    for count in range(min(most, len(seconds) - 1)):
        tokens += scores[count]
        rate = tokens / (seconds[count + 1] + besides)
        if rate > highest:
            best, highest = count + 1, rate
    return best if highest > MARGIN * plain else 0


@njit(cache=True, nogil=True)
def _best_counts(scores, ends, seconds, certain, besides):  # noqa: ANN001, ANN202  (numba)
    """How many of each list; they stand side by side, each falling. Of equal scores the first
    list's comes first."""
    most = min(len(scores), len(seconds) - 1)
    following, owners = np.zeros(len(ends), np.int64), np.empty(most, np.int64)
    following[1:] = ends[:-1]
    falling = np.empty(most, scores.dtype)  # the best of all lists
    for count in range(most):
        owner = -1
        for each in range(len(ends)):
            if following[each] < ends[each] and (
                owner < 0 or scores[following[each]] > scores[following[owner]]
            ):
                owner = each
        falling[count], owners[count] = scores[following[owner]], owner
        following[owner] += 1
    counts = np.zeros(len(ends), np.int64)
    for owner in owners[: _best_count(falling, most, seconds, certain, besides)]:
        counts[owner] += 1
    return counts


def as_many_as_fit(scores: Sequence[np.ndarray], budget: Budget) -> list[int]:
    """The papers' way: everything the drafter found, up to a fixed number."""
    return [min(len(each), budget.nodes) for each in scores]


def best_of(trees: Sequence[DraftTree], choose: Choose, budget: Budget) -> list[DraftTree]:
    """Of each tree as many of its best nodes as the rule says.

    Their q is left behind: a drawn token that stays because of what it is was not drawn from it.
    """
    if all(len(tree) == 1 for tree in trees):
        return list(trees)
    trees = [replace(tree, probs=None) if tree.probs is not None else tree for tree in trees]
    counts = choose([-np.sort(-tree.scores[1:]) for tree in trees], budget)
    return [strongest(tree, count) for tree, count in zip(trees, counts, strict=True)]
