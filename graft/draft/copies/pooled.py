"""Copies from the text at hand and, where they are uncertain, from earlier answers.

The two are calibrated apart: a pool with bad matches loses its own trust, not that of the text.
"""

from collections import Counter

from graft.draft.copies.lookup import LookupDrafter
from graft.draft.copies.texts import matched_spans
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import best_by_cost, best_of
from graft.match.pool import Pools
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree
from graft.tree.fuse import union

LIKELY = 0.8  # with a first draft token this probable the pool is not searched
PATIENCE, INTERVAL = 16, 4  # steps


def pool_lookups(pools: Pools, nodes: int) -> LookupDrafter:
    """Continuations of up to `nodes` nodes from the pool of a sequence's key."""
    return LookupDrafter(
        lambda context: pools.of(context.salt).index(),
        best_by_cost,
        nodes=nodes,
        calibrated=True,
        spans=matched_spans,
    )


class CopiesAndPool:
    """Lookups in the text at hand and in the pool as one drafter.

    After `PATIENCE` searches of the pool without a draft a sequence searches it in every
    `INTERVAL`-th step only: where the pool has nothing it costs next to nothing.
    """

    def __init__(self, copies: "LookupDrafter | CopiesAndPool", pool: LookupDrafter) -> None:
        self._copies, self._pool = copies, pool
        self._fruitless: Counter[int] = Counter()  # by sequence: steps since the pool had a draft

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        self._copies.start(context)
        self._pool.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        trees = self._copies.propose(contexts, budget)
        uncertain = [
            i
            for i, tree in enumerate(trees)
            if (len(tree) == 1 or tree.scores[1] < LIKELY) and self._searches(contexts[i].sequence)
        ]
        if not uncertain:
            return trees
        found = self._pool.propose([contexts[i] for i in uncertain], budget)
        for i, tree in zip(uncertain, found, strict=True):
            if len(tree) > 1:
                self._fruitless[contexts[i].sequence] = 0
        if all(len(tree) == 1 for tree in found):
            return trees
        if len(trees) == 1 == len(trees[0]):  # each is within the cost by itself
            return found
        for i, tree in zip(uncertain, found, strict=True):
            trees[i] = union(trees[i], tree)
        return best_of(trees, best_by_cost, budget)

    def has_draft(self, contexts: list[DraftContext], budget: Budget) -> bool:
        """See LookupDrafter. It counts as a step: where nothing is found, the step runs ahead."""
        if self._copies.has_draft(contexts, budget):
            return True
        searching = [each for each in contexts if self._searches(each.sequence)]
        return bool(searching) and self._pool.has_draft(searching, budget)

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._copies.observe(steps)
        self._pool.observe(steps)

    def update_async(self) -> None:
        """See UpdatesAsync."""
        self._copies.update_async()
        self._pool.update_async()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._copies.finish(sequence)
        self._pool.finish(sequence)
        self._fruitless.pop(sequence, None)

    def _searches(self, sequence: int) -> bool:
        self._fruitless[sequence] += 1
        steps = self._fruitless[sequence]
        return steps <= PATIENCE or steps % INTERVAL == 0
