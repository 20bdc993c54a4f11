"""One sequence's draft while it grows, level by level."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.draft.models.cache import DraftCache
from graft.draft.pacing.trust import Trust
from graft.tree.draft_tree import DraftTree

SOURCE = "model"


@dataclass(slots=True)
class PartialDraft:
    """Nodes in level order, node 0 the root. `token_probs` are the draft model's probabilities of
    the nodes given their parents, `scores` the estimated acceptance of their paths. `probs` are the
    distributions [V] that the nodes of a sampled chain were sampled from."""

    cache: DraftCache
    trust: Trust
    source: str = SOURCE
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=lambda: [-1])
    token_probs: list[float] = field(default_factory=lambda: [1.0])
    scores: list[float] = field(default_factory=lambda: [1.0])
    frontier: list[int] = field(default_factory=lambda: [0])  # nodes that may get children next
    probs: list[Tensor] = field(default_factory=list)
    depth: int = 0

    def __post_init__(self) -> None:
        self.tokens.append(self.cache.context.root)

    def add(self, parent: int, tokens: list[int], token_probs: list[float]) -> list[int]:
        """Add children to a node and return their numbers."""
        first, score = len(self.tokens), self.scores[parent]
        self.tokens += tokens
        self.parents += [parent] * len(tokens)
        self.token_probs += token_probs
        self.scores += [score * self.trust.calibrated(prob) for prob in token_probs]
        return list(range(first, len(self.tokens)))

    def path(self, node: int) -> list[int]:
        """The tokens from below the root down to a node."""
        found = []
        while node > 0:
            found.append(self.tokens[node])
            node = self.parents[node]
        return found[::-1]

    def with_ancestors(self, nodes: list[int]) -> list[int]:
        """These nodes and all their ancestors, the root included, in level order."""
        found = {0}
        for node in nodes:
            while node not in found:
                found.add(node)
                node = self.parents[node]
        return sorted(found)

    @property
    def reach(self) -> float:
        """The estimated probability that the target accepts a path to the frontier."""
        return sum(self.scores[node] for node in self.frontier)

    def tree(self) -> DraftTree:
        """All nodes as a tree."""
        sources = np.ones(len(self.tokens), np.int16)
        sources[0] = 0
        probs = None
        if self.probs:
            probs = torch.stack([*self.probs, torch.zeros_like(self.probs[0])])
        return DraftTree(
            np.array(self.tokens, np.int64),
            np.array(self.parents, np.int32),
            np.array(self.scores, np.float32),
            sources,
            ("", self.source),
            probs,
        )
