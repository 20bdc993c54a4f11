"""LongSpec's draft head (Yang et al. 2025): predicts the next token from the last 512 tokens and
from the target's KV cache of the whole text.

h0 = the target's embedding of a token; h1 = h0 + attention over a window of its own keys; h2 = h1 +
attention to the keys and values of the target's last layer in the target's KV cache; h3 = h2 +
MLP(h2); logits by the target's output layer. So the head's memory is constant at any length.
The paper has no norm before the output layer; with `final_norm` there is one.

One layer's keys and values are much narrower than the target's state where few heads share them.
With `cross_layers` the head attends to those of the last n layers, with its own queries and output
for each: heads side by side, the last layer's first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graft.models.heads.config import HeadConfig
from graft.models.heads.layers import MLP, CrossAttention, Norm, Positions, SelfAttention, all_ids
from graft.models.heads.row_masks import Mask


class LongSpecHead(nn.Module):
    """Embedding and output layer are the target's; `d2t` [n] int64 are the drafted ids."""

    d2t: Tensor
    lm_head = None

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = Norm(config)
        self.self_attn = SelfAttention(config)
        self.cross_layernorm = Norm(config)
        self.cross_attn = CrossAttention(config, config.cross_layers)
        self.post_attention_layernorm = Norm(config)
        self.mlp = MLP(config)
        self.norm = Norm(config) if config.final_norm else nn.Identity()
        self.rotary = Positions(config)
        self.register_buffer("d2t", all_ids(config))

    def forward(
        self,
        embeddings: Tensor,
        memory: tuple[Tensor, Tensor],
        positions: Tensor,
        window: Mask,
        shifts: Sequence[Mask],
    ) -> Tensor:
        """Hidden states [S, B, T, E] for the target's output layer.

        Column t holds token t and predicts token t + 1. `memory`: the keys and values of the
        target's last n layers [B, n * K, T, D], the last one's first, which a column attends to by
        each of the S masks `shifts`.
        """
        rotary = self.rotary(positions)
        normed = self.input_layernorm(embeddings)
        queries = self.self_attn.queries(normed, rotary)
        keys, values = self.self_attn.keys_values(normed, rotary)
        hidden = embeddings + self.self_attn.attend(queries, keys, values, window)
        queries = self.cross_attn.queries(self.cross_layernorm(hidden), rotary)
        outputs = []
        for mask in shifts:
            outputs.append(self._finish(hidden + self.cross_attn.attend(queries, *memory, mask)))
        return torch.stack(outputs)

    def _finish(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden + self.mlp(self.post_attention_layernorm(hidden)))
