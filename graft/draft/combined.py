"""Several drafters, one tree: each proposes, the trees are grafted onto one another.

Where nodes are weighed by time, drafters are asked in turn, lookups first, and each knows what
those before it found that pays (`Budget.after`): where a lookup is sure of itself, a draft model
need not be run. Where a method runs its draft model anyway, lookups run beside it (`AtOnce`), and
what they wait for, such as a disk, costs no time.

How the trees are pruned makes the method: CASD takes everything that fits, RASD only retrieved
branches that the draft model could imagine, and the free compositions what pays by the clock.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Budget, Detachable, DraftContext, Drafter
from graft.draft.pacing.budget import as_many_as_pay, best_of
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree
from graft.tree.fuse import union
from graft.tree.prune import cut, starting_with

# For each sequence, the trees that the drafters proposed, in their order -> one tree for each
Prune = Callable[[list[DraftContext], list[list[DraftTree]], Budget], list[DraftTree]]
# Who guesses, for which sequences, within what budget -> for each drafter a tree for each sequence
Ask = Callable[[Sequence[Drafter], list[DraftContext], Budget], list[list[DraftTree]]]


def in_turn(
    drafters: Sequence[Drafter], contexts: list[DraftContext], budget: Budget
) -> list[list[DraftTree]]:
    """One after the other, each with what those before it left of the budget."""
    proposed: list[list[DraftTree]] = []
    left = budget
    for drafter in drafters:
        if proposed:
            left = budget.after(what_pays(contexts, _by_sequence(proposed), budget))
        proposed.append(drafter.propose(contexts, left))
    return proposed


class AtOnce:
    """All but the last, which is the slow one, on a thread beside it, each with the whole budget.

    The thread starts with the first round and ends when nobody has this object any more.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="graft-lookup")

    def __call__(
        self, drafters: Sequence[Drafter], contexts: list[DraftContext], budget: Budget
    ) -> list[list[DraftTree]]:
        """See Ask. Whatever happens, no lookup is still running when this returns."""
        *quick, slow = drafters
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

    def __init__(self, drafters: Sequence[Drafter], *, prune: Prune, ask: Ask = in_turn) -> None:
        self.drafters, self.prune, self.ask = drafters, prune, ask

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        for drafter in self.drafters:
            drafter.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        proposed = _by_sequence(self.ask(self.drafters, contexts, budget))
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


def everything(
    contexts: list[DraftContext],  # noqa: ARG001
    proposed: list[list[DraftTree]],
    budget: Budget,
) -> list[DraftTree]:
    """All branches, the best first up to the most nodes a tree may have (CASD)."""
    return [cut(reduce(union, trees), budget.nodes) for trees in proposed]


def what_pays(
    contexts: list[DraftContext],  # noqa: ARG001
    proposed: list[list[DraftTree]],
    budget: Budget,
) -> list[DraftTree]:
    """The nodes that are worth the target's time, those of all sequences weighed together."""
    return best_of([reduce(union, trees) for trees in proposed], as_many_as_pay, budget)


class Guide(Drafter, Protocol):
    """A drafter that can say what it held likely: a draft model, or a head."""

    def first_tokens(self, sequence: int) -> list[int]:
        """What it held likeliest after the root, in the draft just proposed."""


@dataclass(frozen=True, slots=True)
class GuidedByModel:
    """RASD: of the retrieved branches those stay whose first token the draft model holds likely.

    Where retrieval finds nothing, it is asked again as if the draft model's likeliest guesses had
    come: those of the first `levels`, `width` of each; what is found hangs under the guess. The
    model's tree is the last of the proposed ones, `retrieval` drew the others.
    """

    retrieval: Sequence[LookupDrafter]
    model: Guide
    levels: int = 2
    width: int = 3

    def __call__(
        self, contexts: list[DraftContext], proposed: list[list[DraftTree]], budget: Budget
    ) -> list[DraftTree]:
        """See Prune."""
        pairs = zip(contexts, proposed, strict=True)
        return [cut(self._fused(*pair, budget.nodes), budget.nodes) for pair in pairs]

    def _fused(self, context: DraftContext, trees: list[DraftTree], nodes: int) -> DraftTree:
        guessed, found = trees[-1], trees[:-1]
        likely = self.model.first_tokens(context.sequence)
        if not likely:
            return reduce(union, trees)
        if all(len(tree) == 1 for tree in found):
            found = self._asked_again(context, guessed, nodes)
        return reduce(union, [starting_with(tree, likely) for tree in found], guessed)

    def _asked_again(self, context: DraftContext, tree: DraftTree, nodes: int) -> list[DraftTree]:
        """What retrieval finds behind the guesses, level by level until it finds something."""
        paths = tree.paths()
        for level in range(1, self.levels + 1):
            guesses = [node for node in range(len(tree)) if len(paths[node]) == level]
            best = sorted(guesses, key=lambda node: -tree.scores[node])[: self.width]
            found = [
                drafter.propose_after(context, paths[node], _scores_to(tree, node), nodes)
                for node in best
                for drafter in self.retrieval
            ]
            found = [each for each in found if len(each) > 1]
            if found:
                return found
        return []


def _scores_to(tree: DraftTree, node: int) -> list[float]:
    """The scores of the path from below the root down to a node."""
    scores = []
    while node > 0:
        scores.append(float(tree.scores[node]))
        node = int(tree.parents[node])
    return scores[::-1]
