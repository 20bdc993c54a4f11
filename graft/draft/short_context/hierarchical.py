"""Tiers of drafters (TriForce): the lowest guesses, the middle one checks its guesses, the target
checks what the middle one would write.

The middle tier reads the lowest one's guesses in one forward and keeps what it would have drawn
itself, with the target's noise: its chain is to the token the one it would have drafted alone, in
fewer forwards. The target's walk then makes the whole exact. Where the middle tier would see all
that the target sees, the lowest one drafts for the target itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.draft.models.growth import Ahead, ChainGrowth
from graft.draft.models.guess import Guess
from graft.draft.short_context.streaming import SelfDrafter
from graft.models.language_model import LanguageModel, TargetStep
from graft.sampling import upload
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import below, shallow
from graft.verify.draws import preferences
from graft.verify.walk import walk

# What the lowest tier guesses if these tokens come next: a tree rooted at the last of them
Onward = Callable[[DraftContext, list[int], int], DraftTree]


def no_guess(context: DraftContext, path: list[int], nodes: int) -> DraftTree:  # noqa: ARG001
    """Of a tier that guesses only from what is known, such as a head."""
    return root_only(path[-1])


def copies_after(copier: LookupDrafter) -> Onward:
    """What a lookup finds behind tokens that are not written yet; its index must be
    far-sighted."""

    def after(context: DraftContext, path: list[int], nodes: int) -> DraftTree:
        found = copier.propose_after(context, path, [1.0] * len(path), nodes)
        return below(found, len(path)) if len(found) > 1 else root_only(path[-1])

    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGrowth(ChainGrowth):
    """A chain of at most `depth` tokens, several from a forward where `lowest` guesses right: at
    first from what is known, then `onward`, `nodes` at a time."""

    lowest: Drafter
    onward: Onward
    nodes: int

    @property
    def scratch(self) -> int:
        """See Growth."""
        return self.depth + self.nodes

    def foresees(self, guesses: Sequence[Guess]) -> bool:  # noqa: ARG002
        """See Growth. The lowest tier guesses on the host."""
        return False

    def rows(self, guess: Guess) -> int:
        """See Growth. At most: what the lowest tier will guess is not known yet."""
        return 1 + min(self.nodes, self.depth - guess.depth - 1)

    def read(self, model: LanguageModel, guesses: Sequence[Guess]) -> Tensor:
        """See Growth."""
        trees = self._guessed(guesses)
        extents = [guess.reader.extent for guess in guesses]
        logits, counts = model.score_all(extents, trees)
        best = preferences(_places(guesses, trees), logits).max(-1)
        drawn, shares = best.indices.tolist(), best.values.exp().tolist()
        paths, last, first = [], [], 0
        for guess, tree, count in zip(guesses, trees, counts, strict=True):
            part = slice(first, first + count)
            verdict = walk(tree, logits[part], guess.reader.context.sampler, drawn[part])
            _take(guess, tree, verdict.path, shares[part])
            paths.append(verdict.path)
            last.append(first + verdict.path[-1])
            first += count
        model.commit_all(list(zip(extents, paths, strict=True)))
        return logits[upload(torch.tensor(last), logits.device)]

    def _guessed(self, guesses: Sequence[Guess]) -> list[DraftTree]:
        """The lowest tier's trees, each behind what its guess holds already."""
        begun = {id(guess): guess.path(guess.frontier[0]) for guess in guesses}
        new = [guess.reader.context for guess in guesses if not begun[id(guess)]]
        budget = Budget(self.nodes, np.ones(self.nodes + 1))
        first = iter(self.lowest.propose(new, budget) if new else [])
        trees = []
        for guess in guesses:
            path = begun[id(guess)]
            found = self.onward(guess.reader.context, path, self.nodes) if path else next(first)
            trees.append(shallow(found, self.depth - guess.depth - 1))
        return trees


def _places(guesses: Sequence[Guess], trees: Sequence[DraftTree]) -> list[tuple[object, Ahead]]:
    """Where the middle tier draws: at every node of every tree."""
    return [
        (guess.reader.context.sampler, Ahead([*guess.path(guess.frontier[0]), *path]))
        for guess, tree in zip(guesses, trees, strict=True)
        for path in tree.paths()
    ]


def _take(guess: Guess, tree: DraftTree, path: list[int], shares: list[float]) -> None:
    """The nodes of a path become part of the guess; shares[i] is that of what was drawn at i."""
    context, names = guess.reader.context, tree.source_names
    context.inner_drafted.update(names[source] for source in tree.sources[1:])
    context.inner_accepted.update(tree.source(node) for node in path[1:])
    for parent, node in zip(path, path[1:], strict=False):
        token = int(tree.tokens[node])
        guess.frontier = guess.add(guess.frontier[0], [token], [shares[parent]])
        guess.depth += 1


class Hierarchical:
    """A middle tier that grows by `CheckedGrowth`, and the lowest one, as one drafter."""

    def __init__(self, middle: SelfDrafter, lowest: Drafter) -> None:
        self._middle, self._lowest = middle, lowest

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        self._lowest.start(context)
        self._middle.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        trees = self._middle.propose(contexts, budget)
        short = [i for i, each in enumerate(contexts) if self._middle.sees_all(each.sequence)]
        if short:
            own = self._lowest.propose([contexts[i] for i in short], budget)
            for i, tree in zip(short, own, strict=True):
                trees[i] = tree
        return trees

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._lowest.observe(steps)
        self._middle.observe(steps)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._lowest.finish(sequence)
        self._middle.finish(sequence)
