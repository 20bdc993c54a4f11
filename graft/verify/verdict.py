"""The result of verification."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from torch import Tensor

from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree


class Promise(IntEnum):
    """What an answer has in common with plain decoding's answer; its weakest step decides."""

    SAME_TEXT = 0
    SAME_DISTRIBUTION = 1
    OTHER_DISTRIBUTION = 2

    def __str__(self) -> str:
        return self.name.replace("_", " ").lower()

    @property
    def lossless(self) -> bool:
        """Whether drafting leaves the distribution of answers unchanged."""
        return self is not Promise.OTHER_DISTRIBUTION


@dataclass(frozen=True, slots=True)
class Verdict:
    """`path` holds the accepted nodes, root first; `next_token` follows the last of them."""

    path: list[int]
    next_token: int
    promise: Promise = Promise.SAME_TEXT


class Verifier(Protocol):
    """Decides which nodes of a draft tree are accepted; a pure function."""

    def __call__(
        self, tree: DraftTree, logits: Tensor, sampler: Sampler, drawn: Sequence[int] | None = None
    ) -> Verdict:
        """`logits` is [N, V]; `drawn` has the sampled token of each node, if known (`draws.py`)."""
