"""What verification decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """`path` holds the accepted nodes, root first; `next_token` follows the last of them."""

    path: list[int]
    next_token: int


class Verifier(Protocol):
    """Decides what to keep of a tree; pure."""

    def __call__(
        self, tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
    ) -> Verdict:
        """Logits are [N, V]; `drawn` has the token that the sampler draws at each node, where that
        is known (`draws.py`)."""
