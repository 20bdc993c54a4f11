"""Runs a LongSpec head: a ring of the last tokens' rows, and the target's own KV cache.

The ring has as many rows as the window, whatever the length of the text: position p has row p
modulo the window. Draft tokens attend to the positions inside their window, and to all committed
rows of the target's last layers.
"""

import numpy as np
from torch import Tensor, nn

from graft.models.heads.layers import Rotary, SelfAttention, reversed_blocks
from graft.models.heads.runner import HeadRunner, Known, Memory, Text
from graft.models.language_model import LanguageModel
from graft.models.longspec_head import LongSpecHead


class LongSpecRunner(HeadRunner):
    """Has constant memory: it needs no features, and of the text only the window."""

    def __init__(self, head: LongSpecHead, model: LanguageModel, *, packed: bool = False) -> None:
        into_cache_order(head)
        super().__init__(head, model, packed=packed)
        self.window = head.config.window

    @property
    def attention(self) -> SelfAttention:
        """See HeadRunner."""
        return self.head.self_attn

    @property
    def block(self) -> nn.Module:
        """See HeadRunner."""
        return self.head

    def inputs(self, tokens: Tensor, features: Tensor | None) -> Tensor:  # noqa: ARG002
        """See HeadRunner."""
        return self.embed(tokens)

    def normed(self, inputs: Tensor) -> Tensor:
        """See HeadRunner."""
        return self.head.input_layernorm(inputs)

    def rows(self, text: Text, positions: np.ndarray) -> np.ndarray:
        """See HeadRunner."""
        assert len(positions) <= self.window, "only the last window of a text is needed"
        return text.memory.extent.start + positions % self.window

    def seen(self, memory: Memory, depth: int) -> list[tuple[int, int]]:
        """See HeadRunner."""
        root, start = memory.end - 1, memory.extent.start
        oldest = max(memory.first, root + depth - self.window + 1)
        first, last = oldest % self.window, root % self.window
        ranges = [(first, last)] if first <= last else [(first, self.window - 1), (0, last)]
        rows = [(start + one, other - one + 1) for one, other in ranges]
        return [*rows, (start + self.window, 0)]

    def finish(self, inputs: Tensor, attended: Tensor, rotary: Rotary, known: Known) -> Tensor:
        """See HeadRunner."""
        head, hidden = self.head, inputs + attended
        queries = head.cross_attn.queries(head.cross_layernorm(hidden), rotary)
        mixed, _ = known.target(queries)
        hidden = hidden + head.cross_attn.joined(mixed.to(inputs.dtype))
        return hidden + head.mlp(head.post_attention_layernorm(hidden))


def into_cache_order(head: LongSpecHead) -> None:
    """Reorder its heads: the first attend to the first of the layers, in the order of the target's
    cache; in training, and in files, they attend to the last."""
    cross = head.cross_attn
    for weight, dim in ((cross.q_proj.weight, 0), (cross.q_proj.bias, 0), (cross.o_proj.weight, 1)):
        if weight is not None:
            weight.data = reversed_blocks(weight.data, head.config.cross_layers, dim)
