"""LongSpec's head at work: a ring of the last tokens' rows, and the target's own cache.

The ring has as many rows as the window is wide, whatever the length of the text: the row of
position p is number p modulo the window. Guesses see it without the positions that have left their
window, and of the target's last layer all committed rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graft.kernels.attention_parts import Part
from graft.models.arena import Extent
from graft.models.head_layers import Rotary, SelfAttention
from graft.models.head_runner import HeadRunner, Memory, Text, joined
from graft.models.language_model import LanguageModel
from graft.models.longspec_head import LongSpecHead


class LongSpecRunner(HeadRunner):
    """Constant memory: no feature is read, and of the text only what is inside the window."""

    def __init__(self, head: LongSpecHead, model: LanguageModel, *, packed: bool = False) -> None:
        super().__init__(head, model, packed=packed)
        self.window = head.config.window

    @property
    def attention(self) -> SelfAttention:
        """See HeadRunner."""
        return self.head.self_attn

    def inputs(self, tokens: Tensor, features: Tensor | None) -> Tensor:  # noqa: ARG002
        """See HeadRunner."""
        return self.embed(tokens)

    def normed(self, inputs: Tensor) -> Tensor:
        """See HeadRunner."""
        return self.head.input_layernorm(inputs)

    def rows(self, text: Text, positions: np.ndarray) -> np.ndarray:
        """See HeadRunner."""
        assert len(positions) <= self.window, "nothing before the window is ever seen"
        return text.memory.extent.start + positions % self.window

    def known(self, query: Tensor, memory: Memory, depth: int) -> Part:
        """See HeadRunner."""
        root = memory.end - 1
        oldest = max(memory.first, root + depth - self.window + 1)
        first, last = oldest % self.window, root % self.window
        start = memory.extent.start
        ranges = [(first, last)] if first <= last else [(first, self.window - 1), (0, last)]
        segments = [(start + one, other - one + 1) for one, other in ranges]
        return self.storage.attend(0, query, segments, self.scale)

    def finish(
        self, inputs: Tensor, attended: Tensor, rotary: Rotary, extents: Sequence[Extent]
    ) -> Tensor:
        """See HeadRunner."""
        head, hidden = self.head, inputs + attended
        queries = head.cross_attn.queries(head.cross_layernorm(hidden), rotary)
        storage = self.model.arena.storage
        seen = [
            storage.attend(-1, query, extent.segments, self.scale)[0]
            for query, extent in zip(queries, extents, strict=True)
        ]
        hidden = hidden + joined(head.cross_attn, torch.stack(seen).to(inputs.dtype))
        return head.norm(hidden + head.mlp(head.post_attention_layernorm(hidden)))
