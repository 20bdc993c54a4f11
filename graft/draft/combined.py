"""Several drafters as one: each proposes a tree, and the trees are merged.

Where the cost limits the nodes, drafters propose one after the other, lookups first, each with the
budget that the earlier ones leave (`Budget.after`): after a confident lookup a draft model need not
run. Where a method always runs its draft model or head, lookups run beside it (`Concurrently`), so
they and their waits, such as for a disk, cost no time.

The pruning rule makes the method: CASD keeps all nodes up to a limit, RASD only retrieved branches
that start with one of the draft model's best tokens, and presets joined by + the nodes within the
cost.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Protocol, runtime_checkable

from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import (
    Budget,
    Detachable,
    DraftContext,
    Drafter,
    begins_early,
    options_of,
)
from graft.draft.options import MAX_TOP_K
from graft.draft.pacing.budget import best_by_cost, best_of
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree
from graft.tree.fuse import union
from graft.tree.prune import cut, starting_with

# For each sequence the drafters' trees, in their order -> one tree for each sequence
Prune = Callable[[list[DraftContext], list[list[DraftTree]], Budget], list[DraftTree]]
# Runs the drafters -> for each drafter a tree for each sequence
Schedule = Callable[[Sequence[Drafter], list[DraftContext], Budget], list[list[DraftTree]]]


def one_by_one(
    drafters: Sequence[Drafter], contexts: list[DraftContext], budget: Budget
) -> list[list[DraftTree]]:
    """Each drafter with the budget that the earlier ones leave."""
    proposed: list[list[DraftTree]] = []
    left = budget
    for drafter in drafters:
        if proposed:
            left = budget.after(within_cost(contexts, _by_sequence(proposed), budget))
        proposed.append(drafter.propose(contexts, left))
    return proposed


class Concurrently:
    """The last drafter, which is the slow one, and all others beside it, each with the whole
    budget: while its device drafts, or else on a thread, which ends with this object."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="graft-lookup")

    def __call__(
        self, drafters: Sequence[Drafter], contexts: list[DraftContext], budget: Budget
    ) -> list[list[DraftTree]]:
        """See Schedule. No lookup is running when this returns or raises."""
        *quick, slow = drafters
        if begins_early(slow):
            pending = slow.begin(contexts, budget)
            found = [drafter.propose(contexts, budget) for drafter in quick]
            return [*found, pending()]
        beside = self._executor.submit(
            lambda: [drafter.propose(contexts, budget) for drafter in quick]
        )
        try:
            last = slow.propose(contexts, budget)
        finally:
            wait([beside])
        return [*beside.result(), last]


class Combined:
    """Any number of drafters as one."""

    def __init__(
        self, drafters: Sequence[Drafter], *, prune: Prune, schedule: Schedule = one_by_one
    ) -> None:
        self.drafters, self.prune, self.schedule = drafters, prune, schedule

    @cached_property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return options_of(*self.drafters)

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        for drafter in self.drafters:
            drafter.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        proposed = _by_sequence(self.schedule(self.drafters, contexts, budget))
        return self.prune(contexts, proposed, budget)

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for drafter in self.drafters:
            drafter.observe(steps)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        for drafter in self.drafters:
            drafter.finish(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable."""
        for drafter in self.drafters[1:]:
            if isinstance(drafter, Detachable):
                drafter.detach(sequence)
            else:
                drafter.finish(sequence)


def _by_sequence(proposed: list[list[DraftTree]]) -> list[list[DraftTree]]:
    return [list(trees) for trees in zip(*proposed, strict=True)]


def all_nodes(
    contexts: list[DraftContext], proposed: list[list[DraftTree]], budget: Budget
) -> list[DraftTree]:
    """The best nodes up to the budget's limit per tree (CASD)."""
    return [cut(reduce(union, trees), budget.nodes) for trees in proposed]


def within_cost(
    contexts: list[DraftContext], proposed: list[list[DraftTree]], budget: Budget
) -> list[DraftTree]:
    """The nodes that raise the batch's expected tokens per second."""
    return best_of([reduce(union, trees) for trees in proposed], best_by_cost, budget)


@runtime_checkable
class Guide(Drafter, Protocol):
    """A drafter with probabilities: a draft model, or a head."""

    def first_tokens(self, sequence: int) -> list[int]:
        """The best tokens of the distribution after the root in the last draft, best first and
        before any node is cut; as many as the draft gives the root children."""


REQUERY_LEVELS = 2  # of the draft model's tree that RASD repeats retrieval after


@dataclass(frozen=True, slots=True)
class GuidedByModel:
    """RASD: keeps the retrieved branches whose first token is among the draft model's `top_k`.

    Where retrieval finds nothing, it looks up continuations of the draft model's best nodes: the
    `width` best of each of the first `levels`. A request may have numbers of its own. The proposed
    trees are those of `retrieval` and `model`, in this order.
    """

    retrieval: LookupDrafter
    model: Guide
    top_k: int = MAX_TOP_K
    levels: int = REQUERY_LEVELS
    width: int = 3

    def __call__(
        self, contexts: list[DraftContext], proposed: list[list[DraftTree]], budget: Budget
    ) -> list[DraftTree]:
        """See Prune."""
        pairs = zip(contexts, proposed, strict=True)
        return [cut(self._fused(*pair, budget.nodes), budget.nodes) for pair in pairs]

    def _fused(self, context: DraftContext, trees: list[DraftTree], nodes: int) -> DraftTree:
        found, drafted = trees
        own = context.options.rasd
        top_k = own.top_k if own else self.top_k
        likely = self.model.first_tokens(context.sequence)[:top_k]
        if not likely:
            return union(found, drafted)
        if len(found) == 1:
            return self._continued(context, drafted, nodes)
        return union(drafted, starting_with(found, likely))

    def _continued(self, context: DraftContext, tree: DraftTree, nodes: int) -> DraftTree:
        """The tree with retrieved continuations of its nodes, of the first level that has any."""
        paths, whole, levels = tree.paths(), tree, self.levels
        if (own := context.options.rasd) and own.requery is not None:
            levels = REQUERY_LEVELS if own.requery else 0
        for level in range(1, levels + 1):
            in_level = [node for node in range(len(tree)) if len(paths[node]) == level]
            best = sorted(in_level, key=lambda node: -tree.scores[node])[: self.width]
            for node in best:  # their numbers stay: new nodes come after this level
                found = self.retrieval.propose_after(context, paths[node], nodes)
                whole = union(whole, found, at=node)
            if whole is not tree:
                break
        return whole
