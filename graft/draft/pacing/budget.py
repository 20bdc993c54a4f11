"""How many nodes to keep: as many as raise the expected tokens per second of the whole step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numba import njit

from graft.draft.drafter import Budget
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import strongest
from graft.tree.relations import strongest_nodes

# Scores of each tree's nodes in descending order, and a budget -> how many of each to keep
Choose = Callable[[Sequence[np.ndarray], Budget], list[int]]

MARGIN = 1.03  # a tree must be expected to be this much faster than none: estimates err


def warm_up() -> None:
    """Compile the rule, or load it from the cache, so that the first request need not."""
    strongest_nodes(np.ones(2, np.float32), 1)
    for trees in (1, 2):
        best_by_cost([np.ones(1, np.float32)] * trees, Budget(1, np.ones(2)))


def best_by_cost(scores: Sequence[np.ndarray], budget: Budget) -> list[int]:
    """For each tree, how many of its nodes (path probabilities, descending) save time.

    Trees are weighed together: all sequences wait for a node of one. A step over the best n nodes
    yields `base_tokens` + the sum of their path probabilities in expectation and takes seconds[n],
    plus `overhead_seconds` where n > 0. The best rate wins; of equal ones the smaller trees.
    """
    base, overhead = float(budget.base_tokens), float(budget.overhead_seconds)
    if len(scores) == 1:  # the usual case, and a GPU waits for it
        limit = min(len(scores[0]), budget.nodes)
        return [_best_count(scores[0], limit, budget.seconds, base, overhead) if limit else 0]
    capped = [each[: budget.nodes] for each in scores]
    ends = np.array([*accumulate(map(len, capped))])
    if not ends[-1]:
        return [0] * len(capped)
    together = np.concatenate(capped)
    return _best_counts(together, ends, budget.seconds, base, overhead).tolist()


@njit(cache=True, nogil=True)
def _best_count(scores, limit, seconds, base, overhead):  # noqa: ANN001, ANN202  (numba)
    """How many of the first `limit` of one descending list."""
    plain = base / seconds[0]
    tokens, best, highest = base, 0, plain
    for count in range(min(limit, len(seconds) - 1)):
        tokens += scores[count]
        rate = tokens / (seconds[count + 1] + overhead)
        if rate > highest:
            best, highest = count + 1, rate
    return best if highest > MARGIN * plain else 0


@njit(cache=True, nogil=True)
def _best_counts(scores, ends, seconds, base, overhead):  # noqa: ANN001, ANN202  (numba)
    """How many of each list; the lists are concatenated, each descending. Of equal scores the
    first list's wins."""
    limit = min(len(scores), len(seconds) - 1)
    following, owners = np.zeros(len(ends), np.int64), np.empty(limit, np.int64)
    following[1:] = ends[:-1]
    falling = np.empty(limit, scores.dtype)  # the best of all lists
    for count in range(limit):
        owner = -1
        for each in range(len(ends)):
            if following[each] < ends[each] and (
                owner < 0 or scores[following[each]] > scores[following[owner]]
            ):
                owner = each
        falling[count], owners[count] = scores[following[owner]], owner
        following[owner] += 1
    counts = np.zeros(len(ends), np.int64)
    for owner in owners[: _best_count(falling, limit, seconds, base, overhead)]:
        counts[owner] += 1
    return counts


def up_to_limit(scores: Sequence[np.ndarray], budget: Budget) -> list[int]:
    """All nodes up to the budget's limit, as in the papers."""
    return [min(len(each), budget.nodes) for each in scores]


def best_of(trees: Sequence[DraftTree], choose: Choose, budget: Budget) -> list[DraftTree]:
    """The best nodes of each tree, as many as `choose` says.

    Their q is dropped: a token that is kept because of its value was not sampled from q.
    """
    if all(len(tree) == 1 for tree in trees):
        return list(trees)
    trees = [replace(tree, probs=None) if tree.probs is not None else tree for tree in trees]
    counts = choose([-np.sort(-tree.scores[1:]) for tree in trees], budget)
    return [strongest(tree, count) for tree, count in zip(trees, counts, strict=True)]
