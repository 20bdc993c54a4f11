"""Drafters that know the answer, and a walk that counts side branches: for the lossless tests."""

from itertools import pairwise

from torch import Tensor

from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree, from_paths, root_only
from graft.verify.verdict import Verdict
from graft.verify.walk import walk


class Knowing(NoDraft):
    """Base class: has plain decoding's answer to each prompt."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        return [self._propose(context, budget) for context in contexts]

    def _propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        answer = self.answers[tuple(context.prompt)]
        remaining = answer[len(context.tokens) :]
        assert answer[: len(context.tokens)] == context.tokens, "differs from plain decoding"
        paths = self.paths(remaining, budget.nodes) if remaining and budget.nodes else []
        return from_paths(context.root, paths, "test") if paths else root_only(context.root)

    def paths(self, remaining: list[int], nodes: int) -> list[list[int]]:
        raise NotImplementedError

    def wrong(self, token: int, distance: int) -> int:
        return (token + distance) % self.vocabulary


class Oracle(Knowing):
    """Drafts the answer, at every level as the second of three children."""

    def paths(self, remaining: list[int], nodes: int) -> list[list[int]]:
        right = remaining[: min(5, nodes // 3)]
        before = [[*right[:d], self.wrong(token, 1)] for d, token in enumerate(right)]
        after = [[*right[:d], self.wrong(token, 2)] for d, token in enumerate(right)]
        return [*before, right, *after]


class Adversary(Knowing):
    """Always rejected: wide and deep trees with the right tokens at wrong positions only."""

    def paths(self, remaining: list[int], nodes: int) -> list[list[int]]:
        paths = []
        for distance in range(1, min(5, nodes // 9 + 1)):
            wrong = self.wrong(remaining[0], distance)
            paths += [[wrong, *remaining[:4]], [wrong, *remaining[1:3]], [wrong] * 3]
        return paths


class WatchedWalk:
    """The walk verifier, counting accepted nodes that are not the first child."""

    def __init__(self) -> None:
        self.side_branches = 0

    def __call__(self, tree: DraftTree, logits: Tensor, sampler: Sampler, drawn=None) -> Verdict:
        verdict = walk(tree, logits, sampler, drawn)
        children = tree.children
        for parent, node in pairwise(verdict.path):
            self.side_branches += node != next(iter(children[parent].values()))
        return verdict
