"""How many nodes pay: as many as raise the expected tokens per second of the whole step."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from graft.draft.drafter import Budget
from graft.match.hash_table import compiled
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import strongest

# Scores of each tree's nodes, best first, and what they may cost -> how many of each to keep
Choose = Callable[[Sequence[np.ndarray], Budget], list[int]]

MARGIN = 1.03  # a tree must promise this much more than none: drafting costs time, estimates err


def paying_nodes(scores: np.ndarray, budget: Budget) -> int:
    """How many of the nodes (path probabilities, best first) to keep.

    A step over the best n nodes yields `budget.certain` tokens + the sum of their path
    probabilities in expectation and costs seconds[n], and with any of them `besides`. The best rate
    wins; of equal ones the smaller tree.
    """
    chances = np.ascontiguousarray(scores, np.float64)
    seconds = np.ascontiguousarray(budget.seconds, np.float64)
    return _best_count(chances, seconds, float(budget.certain), float(budget.besides))


@compiled
def _best_count(chances: np.ndarray, seconds: np.ndarray, certain: float, besides: float) -> int:
    plain = certain / seconds[0]
    tokens, best, highest = certain, 0, plain
    for count in range(1, min(len(chances), len(seconds) - 1) + 1):
        tokens += chances[count - 1]
        rate = tokens / (seconds[count] + besides)
        if rate > highest:
            best, highest = count, rate
    return best if highest > MARGIN * plain else 0


def warm_up() -> None:
    """Compile the rule, or load it from the cache, so that the first request need not."""
    as_many_as_pay([np.zeros(0), np.zeros(0)], Budget(0, np.ones(1)))


def as_many_as_pay(scores: Sequence[np.ndarray], budget: Budget) -> list[int]:
    """For each tree how many of its nodes (best first) are worth their time, all trees weighed
    together: in a batch a node of one sequence costs time that all of them wait."""
    capped = [each[: budget.nodes] for each in scores]
    if len(capped) == 1:
        return [paying_nodes(capped[0], budget)]
    ends = np.cumsum([len(each) for each in capped])
    pooled, owners = np.empty(ends[-1]), np.empty(ends[-1], np.int64)
    following = np.array([0, *ends[:-1]])
    _merge(np.concatenate(capped, dtype=np.float64), following, ends, pooled, owners)
    return np.bincount(owners[: paying_nodes(pooled, budget)], minlength=len(capped)).tolist()


@compiled
def _merge(
    scores: np.ndarray,
    following: np.ndarray,
    ends: np.ndarray,
    pooled: np.ndarray,
    owners: np.ndarray,
) -> None:
    """Several lists of falling scores, side by side, into one, and whose each is; of equal ones the
    first list's comes first. `following` are where the lists begin, and after this where they end.
    """
    for place in range(len(pooled)):
        best = -1
        for owner in range(len(ends)):
            if following[owner] < ends[owner] and (
                best < 0 or scores[following[owner]] > scores[following[best]]
            ):
                best = owner
        pooled[place], owners[place] = scores[following[best]], best
        following[best] += 1


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
