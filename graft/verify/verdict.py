"""What verification decides."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """`path` holds the accepted nodes, root first; `next_token` follows the last of them."""

    path: list[int]
    next_token: int


# (tree, logits [N, V] of its nodes, sampler) -> what to keep; pure
Verifier = Callable[[DraftTree, Tensor, Sampler], Verdict]
