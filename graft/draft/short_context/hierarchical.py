"""Hierarchical speculation (TriForce): a fast drafter proposes, a middle drafter verifies and
extends its chain, the target verifies the result.

The middle drafter verifies the fast one's tree in one forward and keeps the tokens that it would
have sampled itself, with the target's noise: its chain is the one it would have drafted alone, in
fewer forwards. The target's verification keeps the output exact. Where the middle drafter would
see the whole KV cache, the fast one drafts for the target directly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.combined import Combined
from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.draft.models.growth import ChainGrowth
from graft.draft.models.partial_draft import PartialDraft
from graft.draft.short_context.streaming import SelfDrafter
from graft.models.language_model import LanguageModel
from graft.sampling import upload
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import shallow
from graft.verify.draws import Positions, SamplerNodes, preferences

# (context, draft tokens so far, max nodes) -> the fast drafter's tree, rooted at the last of them
ProposeAfter = Callable[[DraftContext, list[int], int], DraftTree]


def no_proposal(context: DraftContext, path: list[int], nodes: int) -> DraftTree:
    """For a fast drafter that can only propose after committed tokens, such as a head."""
    return root_only(path[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGrowth(ChainGrowth):
    """A chain of at most `depth` tokens, several per forward where `fast` proposes right: first
    after the committed tokens, then by `propose_after`, `nodes` at a time."""

    fast: Drafter
    propose_after: ProposeAfter
    nodes: int

    @property
    def scratch(self) -> int:
        """See ChainGrowth."""
        return self.depth + self.nodes

    def grows_ahead(self, drafts: Sequence[PartialDraft]) -> bool:
        """See ChainGrowth. The fast drafter runs on the host."""
        return False

    def rows(self, draft: PartialDraft) -> int:
        """See ChainGrowth. An upper bound: the fast drafter's tree is not known yet."""
        return 1 + min(self.nodes, self.levels_left(draft) - 1)

    def score(self, model: LanguageModel, drafts: Sequence[PartialDraft]) -> Tensor:
        """See ChainGrowth."""
        trees = self._proposed(drafts)
        extents = [draft.cache.held_extent for draft in drafts]
        logits, counts = model.score_all(extents, trees)
        best = preferences(_positions(drafts, trees), logits).max(-1)
        drawn, probs = best.indices.tolist(), best.values.exp().tolist()
        paths, last, first = [], [], 0
        for draft, tree, count in zip(drafts, trees, counts, strict=True):
            part = slice(first, first + count)
            path = _descend(tree, drawn[part])
            _append_path(draft, tree, path, probs[part])
            paths.append(path)
            last.append(first + path[-1])
            first += count
        model.commit_all(list(zip(extents, paths, strict=True)))
        return logits[upload(torch.tensor(last), logits.device)]

    def _proposed(self, drafts: Sequence[PartialDraft]) -> list[DraftTree]:
        """The fast drafter's trees, each rooted at the end of its chain."""
        chains = {id(draft): draft.path(draft.frontier[0]) for draft in drafts}
        new = [draft.cache.context for draft in drafts if not chains[id(draft)]]
        budget = Budget(self.nodes, np.ones(self.nodes + 1))
        first = iter(self.fast.propose(new, budget) if new else [])
        trees = []
        for draft in drafts:
            path, context = chains[id(draft)], draft.cache.context
            found = self.propose_after(context, path, self.nodes) if path else next(first)
            trees.append(shallow(found, self.levels_left(draft) - 1))
        return trees


def _positions(drafts: Sequence[PartialDraft], trees: Sequence[DraftTree]) -> list[SamplerNodes]:
    """Where the middle drafter samples: at every node of every tree."""
    return [
        (draft.cache.context.sampler, Positions(len(path), path=path))
        for draft, tree in zip(drafts, trees, strict=True)
        for node_path in tree.paths()
        for path in [[*draft.path(draft.frontier[0]), *node_path]]
    ]


def _descend(tree: DraftTree, drawn: list[int]) -> list[int]:
    """The nodes whose tokens were sampled, root first."""
    path = [0]
    while (child := tree.children[path[-1]].get(drawn[path[-1]])) is not None:
        path.append(child)
    return path


def _append_path(draft: PartialDraft, tree: DraftTree, path: list[int], probs: list[float]) -> None:
    """Append an accepted path to the chain; probs[i] is that of the token sampled at node i."""
    context, names = draft.cache.context, tree.source_names
    context.inner_drafted.update(names[source] for source in tree.sources[1:])
    context.inner_accepted.update(tree.source(node) for node in path[1:])
    for parent, node in zip(path, path[1:], strict=False):
        token = int(tree.tokens[node])
        draft.frontier = draft.add(draft.frontier[0], [token], [probs[parent]])
        draft.depth += 1


def hierarchical(middle: SelfDrafter, fast: Drafter) -> Combined:
    """A middle drafter that grows by `CheckedGrowth`, and its fast drafter, as one drafter."""

    def middle_or_fast(
        _: Sequence[Drafter], contexts: list[DraftContext], budget: Budget
    ) -> list[list[DraftTree]]:
        trees = middle.propose(contexts, budget)
        short = [i for i, each in enumerate(contexts) if middle.sees_all(each.sequence)]
        if short:
            own = fast.propose([contexts[i] for i in short], budget)
            for i, tree in zip(short, own, strict=True):
                trees[i] = tree
        return [trees]

    def unpruned(_: object, proposed: list[list[DraftTree]], __: Budget) -> list[DraftTree]:
        return [tree for (tree,) in proposed]

    return Combined([fast, middle], prune=unpruned, schedule=middle_or_fast)
