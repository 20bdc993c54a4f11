"""Draft heads of EAGLE's form: they predict from features of the target (its hidden states) and the
next token, and go on from their own outputs.

EAGLE-2 (Li et al. 2024) reads the target's last hidden state after its final norm, predicts the
next one, and the target's output layer turns it into logits. Its layer is Llama's without the norm
before attention. EAGLE-3 (Li et al. 2025) reads hidden states of a low, a middle and a high layer,
which `fc` projects to one feature. Its attention has the normed token and the normed feature side
by side as input; its outputs need not be features of the target, and it has a norm and an output
layer of its own.

A layer for multi-token prediction (MTP; Gloeckle et al. 2024, DeepSeek-V3 2024) is a whole layer of
the target's kind over a projected pair, whose token and feature have a norm each. It comes with the
target's checkpoint and shares its embedding and output layer. Its outputs, after its final norm,
take the place of the target's last hidden states.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graft.models.heads.config import MTP, HeadConfig
from graft.models.heads.layers import MLP, Norm, Positions, SelfAttention, all_ids
from graft.models.heads.row_masks import Mask


class Eagle2Layer(nn.Module):
    """A Llama layer without a norm before attention."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm: nn.Module = nn.Identity()
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = Norm(config)
        self.mlp = MLP(config)
        self.final_layernorm: nn.Module = nn.Identity()

    def normed(self, inputs: Tensor) -> Tensor:
        """Attention's inputs."""
        return self.input_layernorm(inputs)

    def after(self, inputs: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, given attention's."""
        hidden = self._residual(inputs) + attended
        return self.final_layernorm(hidden + self.mlp(self.post_attention_layernorm(hidden)))

    def _residual(self, inputs: Tensor) -> Tensor:
        return inputs


class Eagle3Layer(Eagle2Layer):
    """The same over pairs [..., 2E] of a token and a feature, each with a norm."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.self_attn = SelfAttention(config, inputs=2 * config.hidden)
        self.input_layernorm, self.hidden_norm = Norm(config), Norm(config)
        self._normed_residual = config.norm_before_residual

    def normed(self, inputs: Tensor) -> Tensor:
        """See Eagle2Layer."""
        token, feature = inputs.chunk(2, -1)
        return torch.cat([self.input_layernorm(token), self.hidden_norm(feature)], -1)

    def _residual(self, inputs: Tensor) -> Tensor:
        feature = inputs.chunk(2, -1)[1]
        return self.hidden_norm(feature) if self._normed_residual else feature


class MtpLayer(Eagle2Layer):
    """A layer with all its norms, and the final norm after it."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.input_layernorm, self.final_layernorm = Norm(config), Norm(config)


LAYERS: dict[str, type[Eagle2Layer]] = {"eagle3": Eagle3Layer, "eagle2": Eagle2Layer, MTP: MtpLayer}


class EagleHead(nn.Module):
    """The embedding is the target's, and without `lm_head` the output layer too; `d2t` [n] int64
    are the drafted ids."""

    d2t: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config, self._fuses_pairs = config, config.kind != "eagle3"
        parts = config.num_features + self._fuses_pairs
        self.fc = nn.Linear(parts * config.hidden, config.hidden, bias=config.fusion_bias)
        self.token_norm: nn.Module = nn.Identity()
        self.feature_norm: nn.Module = nn.Identity()
        if config.kind == MTP:
            self.token_norm, self.feature_norm = Norm(config), Norm(config)
        self.layer = LAYERS[config.kind](config)
        self.norm = nn.Identity() if self._fuses_pairs else Norm(config)
        self.lm_head: nn.Linear | None = None
        if config.own_output:
            self.lm_head = nn.Linear(config.hidden, config.draft_vocabulary, bias=False)
        self.rotary = Positions(config)
        self.register_buffer("d2t", all_ids(config))

    def project(self, features: Tensor) -> Tensor:
        """[..., E]: the target's features [..., num_features * E] in place of the head's own."""
        return features if self._fuses_pairs else self.fc(features)

    def fuse(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """The layer's input for (token t + 1, feature t), both [..., E]."""
        features = self.feature_norm(features.to(embeddings.dtype))
        pairs = torch.cat([self.token_norm(embeddings), features], -1)
        return self.fc(pairs) if self._fuses_pairs else pairs

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, masks: Sequence[Mask]
    ) -> Tensor:
        """Inputs of the output layer [steps, B, T, E] that the head predicts in a chain of steps,
        as at inference.

        Column t holds token t + 1 and the target's features t and predicts token t + 2. In step i
        the last i features before a column are the head's own, of step i - 1 and so on, the earlier
        ones the target's. `masks` are those of `chain_masks`, one for each step.
        """
        rotary, features = self.rotary(positions), self.project(features)
        attention, pairs, outputs = self.layer.self_attn, [], []
        for mask in masks:
            inputs = self.fuse(embeddings, features)
            normed = self.layer.normed(inputs)
            pairs.append(attention.keys_values(normed, rotary))
            keys, values = (torch.cat(parts, 2) for parts in zip(*pairs, strict=True))
            queries, gate = attention.queries(normed, rotary), attention.gate(normed)
            attended = attention.attend(queries, keys, values, mask, gate)
            outputs.append(self.layer.after(inputs, attended))
            features = outputs[-1].roll(1, 1)
        return self.norm(torch.stack(outputs))
