"""How a draft model's draft grows: as a chain, or as a tree by EAGLE-2's rule.

Either makes one forward per level for all sequences together. At temperatures above 0 a draft is
sampled with the target's Gumbel noise, so draft and target agree far more often than with
independent noise. A chain takes the winner of the draw, a tree also the runners-up. Verifiers that
compare the drafter's distribution q with the target's need independent noise instead: such a chain
is `sampled`, and carries its q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graft.draft.models.partial_draft import PartialDraft
from graft.models.language_model import LanguageModel
from graft.sampling import upload
from graft.tree.draft_tree import DraftTree, chain
from graft.verify.draws import SamplerNodes, preferences, sampled

# One token per draft, on the device -> the logits [M, V] after them
ScoreOnDevice = Callable[[Tensor], Tensor]


class Growth(Protocol):
    """A rule that grows `depth` levels of a draft."""

    depth: int
    scratch: int  # rows that the draft tokens of a sequence need at most
    keeps_root: bool  # whether the root's row stays in the cache from level to level
    sampled: bool  # whether drafts carry q, and so must not be pruned by their tokens

    def can_grow(self, draft: PartialDraft) -> bool:
        """Whether the draft may get another level."""

    def rows(self, draft: PartialDraft) -> int:
        """Rows of the next level's forward."""

    def score(self, model: LanguageModel, drafts: Sequence[PartialDraft]) -> Tensor:
        """One forward: logits [M, V] after the frontiers of all drafts, side by side."""

    def extend(self, drafts: Sequence[PartialDraft], logits: Tensor) -> None:
        """Add the next level, given those logits."""

    def can_extend_ahead(self, drafts: Sequence[PartialDraft]) -> bool:
        """Whether `extend_ahead` works for these drafts."""

    def extend_ahead(
        self, drafts: Sequence[PartialDraft], logits: Tensor, levels: int, score: ScoreOnDevice
    ) -> None:
        """Add several levels without waiting for the device in between."""


@dataclass(frozen=True, slots=True)
class DraftPosition:
    """One position to sample at: behind these draft tokens."""

    tokens: list[int]

    def __len__(self) -> int:
        return 1

    @property
    def depths(self) -> np.ndarray:
        """[1]: how far ahead of the root it is."""
        return np.array([len(self.tokens)])

    def paths(self) -> list[list[int]]:
        """The one path to it."""
        return [self.tokens]


@dataclass(frozen=True, slots=True)
class ChainGrowth:
    """One token after another, at most `depth`; ends at the first below `confidence`.

    The chain's rows stay in the cache, so accepted tokens are not computed again.
    """

    depth: int
    confidence: float = 0.0
    sampled: bool = False
    keeps_root = True

    @property
    def scratch(self) -> int:
        """See Growth."""
        return self.depth

    def can_grow(self, draft: PartialDraft) -> bool:
        """See Growth."""
        return draft.depth < self.depth and draft.token_probs[-1] >= self.confidence

    def rows(self, draft: PartialDraft) -> int:  # noqa: ARG002
        """See Growth."""
        return 1

    def score(self, model: LanguageModel, drafts: Sequence[PartialDraft]) -> Tensor:
        """See Growth."""
        extents = [draft.cache.extent for draft in drafts]
        tokens = [draft.tokens[-1] for draft in drafts]
        logits, _ = model.score_all(extents, [chain([token]) for token in tokens])
        model.commit_all([(extent, [0]) for extent in extents])
        for draft, token in zip(drafts, tokens, strict=True):
            draft.cache.drafted.append(token)
        return logits

    def extend(self, drafts: Sequence[PartialDraft], logits: Tensor) -> None:
        """See Growth."""
        tokens, probs = self._next_tokens(drafts, _frontier_positions(drafts), logits)
        _append_levels(drafts, [tokens.tolist()], [probs.tolist()])

    def can_extend_ahead(self, drafts: Sequence[PartialDraft]) -> bool:
        """See Growth."""
        samplers = [draft.cache.context.sampler for draft in drafts]
        return not self.confidence and all(each is None or each.stateless for each in samplers)

    def extend_ahead(
        self, drafts: Sequence[PartialDraft], logits: Tensor, levels: int, score: ScoreOnDevice
    ) -> None:
        """See Growth. The host gets the tokens of all levels at the end."""
        samplers = [draft.cache.context.sampler for draft in drafts]
        found: list[tuple[Tensor, Tensor]] = []
        for level in range(levels):
            after = score(found[-1][0]) if found else logits
            # Such samplers depend on the depth alone, so the tokens may be unknown
            positions = [DraftPosition([0] * (draft.depth + level)) for draft in drafts]
            pairs = list(zip(samplers, positions, strict=True))
            found.append(self._next_tokens(drafts, pairs, after))
        tokens, probs = (torch.stack(each).tolist() for each in zip(*found, strict=True))
        _append_levels(drafts, tokens, probs)
        for draft in drafts:
            draft.cache.drafted += draft.tokens[-levels:-1]

    def _next_tokens(
        self, drafts: Sequence[PartialDraft], positions: list[SamplerNodes], logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next token of each draft, and the draft model's probability of it."""
        if not self.sampled:
            best = preferences(positions, logits).max(-1)
            return best.indices, best.values.exp()
        tokens, probs = sampled(positions, logits)
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

    @property
    def scratch(self) -> int:
        """See Growth."""
        return 1 + self.width * self.depth

    def can_grow(self, draft: PartialDraft) -> bool:
        """See Growth."""
        return draft.depth < self.depth

    def rows(self, draft: PartialDraft) -> int:
        """See Growth."""
        return len(draft.with_ancestors(draft.frontier))

    def score(self, model: LanguageModel, drafts: Sequence[PartialDraft]) -> Tensor:
        """See Growth."""
        trees, selected, first = [], [], 0
        for draft in drafts:
            nodes = draft.with_ancestors(draft.frontier)
            trees.append(_subtree(draft, nodes, model.vocabulary))
            place = {node: i for i, node in enumerate(nodes)}
            selected += [first + place[node] for node in draft.frontier]
            first += len(nodes)
        logits, _ = model.score_all([draft.cache.extent for draft in drafts], trees)
        return logits[upload(torch.tensor(selected), logits.device)]

    def can_extend_ahead(self, drafts: Sequence[PartialDraft]) -> bool:  # noqa: ARG002
        """See Growth. The host selects the best nodes."""
        return False

    def extend(self, drafts: Sequence[PartialDraft], logits: Tensor) -> None:
        """See Growth."""
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


def _append_levels(
    drafts: Sequence[PartialDraft], tokens: Sequence[list[int]], probs: Sequence[list[float]]
) -> None:
    """Append one node per level to each chain; a level has a token and a probability for each."""
    for place, draft in enumerate(drafts):
        for token, prob in zip(tokens, probs, strict=True):
            draft.frontier = draft.add(draft.frontier[0], [token[place]], [prob[place]])
            draft.depth += 1


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


def _frontier_positions(drafts: Sequence[PartialDraft]) -> list[SamplerNodes]:
    return [
        (draft.cache.context.sampler, DraftPosition(draft.path(node)))
        for draft in drafts
        for node in draft.frontier
    ]
