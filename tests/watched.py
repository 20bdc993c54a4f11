"""Drafters that know the answer, and a walk that counts what it does: for the lossless tests."""

from itertools import pairwise

from torch import Tensor

from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree, from_paths, root_only
from graft.verify.verdict import Verdict
from graft.verify.walk import walk


class Knowing(NoDraft):
    """Is told what plain decoding answers to a prompt before it is asked."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        return [self._propose(context, budget) for context in contexts]

    def _propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        answer = self.answers[tuple(context.prompt)]
        coming = answer[len(context.tokens) :]
        assert answer[: len(context.tokens)] == context.tokens, "already not what plain wrote"
        paths = self.paths(coming, budget.nodes) if coming and budget.nodes else []
        return from_paths(context.root, paths, "test") if paths else root_only(context.root)

    def paths(self, coming: list[int], nodes: int) -> list[list[int]]:
        raise NotImplementedError

    def wrong(self, token: int, distance: int) -> int:
        return (token + distance) % self.vocabulary


class Oracle(Knowing):
    """Drafts the answer, at every level as the second of three children."""

    def paths(self, coming: list[int], nodes: int) -> list[list[int]]:
        right = coming[: min(5, nodes // 3)]
        before = [[*right[:d], self.wrong(token, 1)] for d, token in enumerate(right)]
        after = [[*right[:d], self.wrong(token, 2)] for d, token in enumerate(right)]
        return [*before, right, *after]


class Adversary(Knowing):
    """Never right: wide and deep, the coming tokens only at wrong places."""

    def paths(self, coming: list[int], nodes: int) -> list[list[int]]:
        paths = []
        for distance in range(1, min(5, nodes // 9 + 1)):
            wrong = self.wrong(coming[0], distance)
            paths += [[wrong, *coming[:4]], [wrong, *coming[1:3]], [wrong] * 3]
        return paths


class WatchedWalk:
    """The walk, counting how often it went to a child that was not the first."""

    def __init__(self) -> None:
        self.side_branches = 0

    def __call__(self, tree: DraftTree, logits: Tensor, sampler: Sampler, drawn=None) -> Verdict:
        verdict = walk(tree, logits, sampler, drawn)
        children = tree.children
        for parent, node in pairwise(verdict.path):
            self.side_branches += node != next(iter(children[parent].values()))
        return verdict
