"""How a draft model's draft grows: as a chain, or as a tree by EAGLE-2's rule.

Either makes one forward per level for all sequences together. At temperatures above 0 a draft is
sampled with the target's Gumbel noise, so draft and target agree far more often than with
independent noise. A chain takes the winner of the draw, a tree also the runners-up. Verifiers that
compare the drafter's distribution q with the target's need independent noise instead: such a chain
is `sampled`, and carries its q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.models.partial_draft import PartialDraft
from graft.models.language_model import LanguageModel
from graft.sampling import upload
from graft.tree.draft_tree import DraftTree, chain
from graft.verify.draws import Positions, SamplerNodes, preferences, sampled

# One token per draft, on the device -> the logits [M, V] after them
ScoreOnDevice = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class ChainGrowth:
    """One token after another, at most `depth`; ends at the first below `confidence`. A request may
    have its own numbers for both.

    The chain's rows stay in the cache, so accepted tokens are not computed again. `sampled` chains
    carry q, and so must not be pruned by their tokens.
    """

    depth: int
    confidence: float = 0.0
    sampled: bool = False
    keeps_root = True  # whether the root's row stays in the cache from level to level
    options = frozenset({"confidence"})  # see TakesOptions

    @property
    def scratch(self) -> int:
        """Rows that the draft tokens of a sequence need at most."""
        return self.depth

    def levels_left(self, draft: PartialDraft) -> int:
        """Levels that the draft may get at most."""
        return draft.cache.context.max_tokens(self.depth) - draft.depth

    def can_grow(self, draft: PartialDraft) -> bool:
        """Whether the draft may get another level."""
        return self.levels_left(draft) > 0 and draft.token_probs[-1] >= self._confidence(draft)

    def _confidence(self, draft: PartialDraft) -> float:
        own = draft.cache.context.options.confidence
        return self.confidence if own is None else own

    def rows(self, draft: PartialDraft) -> int:
        """Rows of the next level's forward."""
        return 1

    def score(self, model: LanguageModel, drafts: Sequence[PartialDraft]) -> Tensor:
        """One forward: logits [M, V] after the frontiers of all drafts, side by side."""
        extents = [draft.cache.held_extent for draft in drafts]
        tokens = [draft.tokens[-1] for draft in drafts]
        logits, _ = model.score_all(extents, [chain([token]) for token in tokens])
        model.commit_all([(extent, [0]) for extent in extents])
        for draft, token in zip(drafts, tokens, strict=True):
            draft.cache.drafted.append(token)
        return logits

    def grows_ahead(self, drafts: Sequence[PartialDraft]) -> bool:
        """Whether `extend` can add several levels at once to these drafts."""
        samplers = [draft.cache.context.sampler for draft in drafts]
        certain = not any(map(self._confidence, drafts))
        return certain and all(each is None or each.stateless for each in samplers)

    def extend(
        self, drafts: Sequence[PartialDraft], logits: Tensor, levels: int, score: ScoreOnDevice
    ) -> None:
        """Add levels, given those logits. The host gets the tokens of all levels at the end."""
        found = [self._next_tokens(drafts, _frontier_positions(drafts), logits)]
        for level in range(1, levels):
            # Samplers of such drafts depend on the depth alone, so the tokens may be unknown
            positions: list[SamplerNodes] = [
                (draft.cache.context.sampler, Positions(draft.depth + level)) for draft in drafts
            ]
            found.append(self._next_tokens(drafts, positions, score(found[-1][0])))
        tokens, probs = (_on_host(each) for each in zip(*found, strict=True))
        for place, draft in enumerate(drafts):
            for token, prob in zip(tokens, probs, strict=True):
                draft.frontier = draft.add(draft.frontier[0], [token[place]], [prob[place]])
                draft.depth += 1
            draft.cache.drafted += draft.tokens[-levels:-1]

    def _next_tokens(
        self, drafts: Sequence[PartialDraft], positions: list[SamplerNodes], logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next token of each draft, and the draft model's probability of it."""
        if not self.sampled:
            best = preferences(positions, logits).max(-1)
            return best.indices, best.values.exp()
        tokens, probs = sampled([(each, nodes) for each, nodes in positions if each], logits)
        for draft, row in zip(drafts, probs, strict=True):
            draft.probs.append(row)
        return tokens, probs.gather(1, tokens[:, None])[:, 0]


@dataclass(frozen=True, slots=True)
class TreeGrowth:
    """EAGLE-2's dynamic tree: at every level the `width` best nodes get `width` children each.

    The rows of a level are computed again with those below it, and dropped after the draft.
    """

    depth: int
    width: int
    keeps_root = False
    sampled = False
    options = frozenset[str]()

    @property
    def scratch(self) -> int:
        """See ChainGrowth."""
        return 1 + self.width * self.depth

    def levels_left(self, draft: PartialDraft) -> int:
        """See ChainGrowth. A tree of n nodes has at most n levels."""
        return draft.cache.context.max_tokens(self.depth) - draft.depth

    def can_grow(self, draft: PartialDraft) -> bool:
        """See ChainGrowth."""
        return self.levels_left(draft) > 0

    def rows(self, draft: PartialDraft) -> int:
        """See ChainGrowth."""
        return len(draft.with_ancestors(draft.frontier))

    def score(self, model: LanguageModel, drafts: Sequence[PartialDraft]) -> Tensor:
        """See ChainGrowth."""
        trees, selected, first = [], [], 0
        for draft in drafts:
            nodes = draft.with_ancestors(draft.frontier)
            trees.append(_subtree(draft, nodes, model.vocabulary))
            place = {node: i for i, node in enumerate(nodes)}
            selected += [first + place[node] for node in draft.frontier]
            first += len(nodes)
        logits, _ = model.score_all([draft.cache.held_extent for draft in drafts], trees)
        return logits[upload(torch.tensor(selected), logits.device)]

    def grows_ahead(self, drafts: Sequence[PartialDraft]) -> bool:
        """See ChainGrowth. The host selects the best nodes."""
        return False

    def extend(
        self, drafts: Sequence[PartialDraft], logits: Tensor, levels: int, score: ScoreOnDevice
    ) -> None:
        """See ChainGrowth. Adds one level."""
        logs = preferences(_frontier_positions(drafts), logits)
        best = logs.topk(min(self.width, logs.shape[1]))
        probs, tokens = best.values.exp().tolist(), best.indices.tolist()
        row = 0
        for draft in drafts:
            added = []
            for node in draft.frontier:
                count = max(1, sum(prob > 0 for prob in probs[row]))
                added += draft.add(node, tokens[row][:count], probs[row][:count])
                row += 1
            added.sort(key=lambda node: -draft.scores[node])
            draft.frontier = sorted(added[: self.width])
            draft.depth += 1


Growth = ChainGrowth | TreeGrowth


def _subtree(draft: PartialDraft, nodes: list[int], vocabulary: int) -> DraftTree:
    """The tree of some nodes with all their ancestors. The root's token may lie outside the draft
    model's vocabulary; it becomes the last id."""
    place = {node: i for i, node in enumerate(nodes)}
    place[-1] = -1
    return DraftTree(
        np.array([min(draft.tokens[node], vocabulary - 1) for node in nodes]),
        np.array([place[draft.parents[node]] for node in nodes], np.int32),
        np.ones(len(nodes), np.float32),
        np.zeros(len(nodes), np.int16),
    )


def _on_host(levels: tuple[Tensor, ...]) -> list[list]:
    """The rows as lists, copied in one piece."""
    return torch.stack(levels).tolist() if len(levels) > 1 else [levels[0].tolist()]


def _frontier_positions(drafts: Sequence[PartialDraft]) -> list[SamplerNodes]:
    return [
        (draft.cache.context.sampler, Positions(draft.depth, path=draft.path(node)))
        for draft in drafts
        for node in draft.frontier
    ]
