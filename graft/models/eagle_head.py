"""EAGLE-2's draft head (Li et al. 2024): predicts the next feature from the target's last feature
and the next token.

A feature is the target's last hidden state after its final norm; the target's output layer turns
it into logits. The head's layer is Llama's without the norm before attention.
"""

import torch
from torch import Tensor, nn

from graft.models.heads.config import HeadConfig
from graft.models.heads.layers import MLP, Norm, Positions, SelfAttention, all_ids


class EagleLayer(nn.Module):
    """A Llama layer without a norm before attention."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = Norm(config)
        self.mlp = MLP(config)

    def after(self, fused: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, given attention's."""
        hidden = fused + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class EagleHead(nn.Module):
    """Embedding and output layer are the target's; `d2t` [n] int64 are the drafted ids."""

    d2t: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=config.fusion_bias)
        self.layer = EagleLayer(config)
        self.rotary = Positions(config)
        self.register_buffer("d2t", all_ids(config))

    def fuse(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """The layer's input for (token t + 1, feature t), both [..., E]."""
        return self.fc(torch.cat([embeddings, features.to(embeddings.dtype)], -1))

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, visible: Tensor, steps: int
    ) -> Tensor:
        """Features [steps, B, T, E] that the head predicts in a chain of steps, as at inference.

        Column t holds token t + 1 and feature t and gives feature t + 1. In step i the last i
        features before a column are the head's own, of step i - 1 and so on, the earlier ones the
        target's. `visible` [B, T, T]: the columns a column attends to (itself and those before
        it in its document); [1, T, T] if it is the same for all.
        """
        rotary = self.rotary(positions)
        attention, pairs, outputs = self.layer.self_attn, [], []
        for _ in range(steps):
            fused = self.fuse(embeddings, features)
            pairs.append(attention.keys_values(fused, rotary))
            keys, values = (torch.cat(parts, 2) for parts in zip(*pairs, strict=True))
            mask = chain_mask(visible, len(pairs))
            attended = attention.attend(attention.queries(fused, rotary), keys, values, mask)
            outputs.append(self.layer.after(fused, attended))
            features = outputs[-1].roll(1, 1)
        return torch.stack(outputs)


def chain_mask(visible: Tensor, steps: int) -> Tensor:
    """[B, T, steps * T]: in the last of `steps`, the keys of each step a column attends to.

    Those of the first step up to `steps` - 1 columns back, then one of each step: its own chain.
    """
    last = steps - 1
    columns = torch.arange(visible.shape[-1], device=visible.device)
    back = columns[:, None] - columns  # how far a key lies behind a query
    parts = [visible & (back >= last)]
    parts += [visible & (back == last - step) for step in range(1, steps)]
    return torch.cat(parts, -1)
