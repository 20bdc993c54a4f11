"""A head's draft levels on a GPU in few launches, for graphs: gates are fused into products, sums
into norms, and draft rows follow the committed rows, so one attention covers both.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from graft.kernels.beam_triton import Nodes, joined_pairs
from graft.kernels.decoder_triton import add_norm, rotate, rotate_and_store
from graft.kernels.level_attention_triton import PlacedLevel, attend
from graft.models.heads.config import MTP
from graft.models.heads.level_product import LevelProduct
from graft.models.heads.runner import HeadRunner, Text, on

AHEAD = 64  # positions of draft tokens beyond the target's context


class GraphInputs(Protocol):
    """The inputs of a draft of B sequences at fixed addresses. Of the N places for new tokens some
    may be empty: those have no row."""

    tokens: Tensor  # [N] int64: new tokens since the last draft
    features: Tensor  # [N, num_features * E]: the target's before them
    positions: Tensor  # [N] int64
    rows: Tensor  # [N] int64: where they go; -1 for none
    last: Tensor  # [B] int64: the places of the roots
    roots: Tensor  # [B] int64: their positions
    tree_rows: Tensor  # [B] int64: the first draft rows; far below 0 for an empty place

    def attention(self, whose: str, depth: int) -> PlacedLevel:
        """The plan of attention to rows of the head ("own") or the target ("target") at a depth."""


class FusedHead:
    """A head's products and its rotary tables."""

    def __init__(self, runner: HeadRunner) -> None:
        self.runner, head, attention = runner, runner.head, runner.attention
        mlp = runner.block.mlp
        self.qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.attended = _product(attention.o_proj, cut=True)
        self.gate_up = _joined(mlp.gate_proj, mlp.up_proj, gated=True)
        self.down = _product(mlp.down_proj, cut=True)
        self.output = _product(runner.output)
        if runner.window is None:
            self.fc = _product(head.fc)
        else:
            self.cross_query = _product(head.cross_attn.q_proj)
            self.crossed = _product(head.cross_attn.o_proj, cut=True)
        self._pairs = runner.config.kind == "eagle3"
        self._head_norms = None
        if runner.config.head_norms:
            norms = attention.q_norm, attention.k_norm
            self._head_norms = tuple(each.weight.detach() for each in norms)
        positions = torch.arange(runner.model.context_length + AHEAD, device=runner.device)
        half = runner.config.head_size // 2
        with torch.inference_mode():
            self.cosine, self.sine = (
                each[0, 0, :, :half].contiguous() for each in head.rotary(positions[None])
            )

    def inputs(
        self, tokens: Tensor, features: Tensor | None, places: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The residual [N, E] and the inputs of attention for tokens [N], with the target's
        features in order (`places` is None) or with those at these places of the head's own."""
        runner = self.runner
        embeddings = runner.embed(tokens).contiguous()
        if runner.window is not None:
            return embeddings, add_norm(embeddings, None, *_norm(runner.head.input_layernorm))
        if self._pairs:
            return self._normed_pairs(embeddings, features, places)
        if runner.config.kind == MTP:
            return self._fused_norms(embeddings, features, places)
        if places is None:
            pairs = torch.cat([embeddings, features.to(embeddings.dtype)], -1)
        else:
            pairs = joined_pairs(embeddings, features, places)
        fused = self.fc(pairs)
        return fused, fused

    def _fused_norms(
        self, embeddings: Tensor, features: Tensor, places: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """An MTP layer's."""
        head = self.runner.head
        own = features.to(embeddings.dtype) if places is None else features[places]
        tokens = add_norm(embeddings, None, *_norm(head.token_norm))
        normed = add_norm(own.contiguous(), None, *_norm(head.feature_norm))
        fused = self.fc(torch.cat([tokens, normed], -1))
        return fused, add_norm(fused, None, *_norm(head.layer.input_layernorm))

    def _normed_pairs(
        self, embeddings: Tensor, features: Tensor, places: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """EAGLE-3's."""
        head, layer = self.runner.head, self.runner.head.layer
        if places is None:
            own = self.fc(features.to(embeddings.dtype))
        else:
            own = features[places]
        normed = add_norm(own, None, *_norm(layer.hidden_norm))
        tokens = add_norm(embeddings, None, *_norm(layer.input_layernorm))
        residual = normed if head.config.norm_before_residual else own
        return residual, torch.cat([tokens, normed], -1)

    @torch.inference_mode()
    def read(self, texts: Sequence[Text]) -> None:
        """See HeadRunner.read; the layer's inputs for the last tokens are not kept."""
        runner, counts = self.runner, [len(text.tokens) for text in texts]
        positions = [text.memory.end + np.arange(n) for text, n in zip(texts, counts, strict=True)]
        rows = [runner.rows(*pair) for pair in zip(texts, positions, strict=True)]
        tokens = [token for text in texts for token in text.tokens]
        where = np.stack([np.array(tokens), np.concatenate(positions), np.concatenate(rows)])
        ids, places, targets = on(runner.device, where)
        features = [text.features for text in texts if text.features is not None]
        known = torch.cat(features) if features else None
        self.project(self.inputs(ids, known, None)[1], places, targets)
        for text, count in zip(texts, counts, strict=True):
            text.memory.end, text.memory.last = text.memory.end + count, None

    def project(self, normed: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Queries [N, H, D] of attention's inputs; keys and values are written to the rows."""
        qkv = self.qkv(normed)
        keys, values = self.runner.storage.kv[:, 0]
        angles, norms = (self.cosine, self.sine), self._head_norms
        epsilon = self.runner.config.epsilon
        return rotate_and_store(qkv, positions, *angles, rows, keys, values, norms, epsilon)


class FusedRound:
    """Processes new tokens, then drafts level by level."""

    def __init__(self, fused: FusedHead, inputs: GraphInputs) -> None:
        self._fused, self._runner, self._inputs = fused, fused.runner, inputs
        self._depth = 0
        self._outputs: Tensor | None = None  # the layer's

    @torch.inference_mode()
    def root(self) -> Tensor:
        """[B, E]: the output layer's inputs after the last new tokens."""
        inputs = self._inputs
        hidden, normed = self._fused.inputs(inputs.tokens, inputs.features, None)
        query = self._fused.project(normed, inputs.positions, inputs.rows)
        return self._through(hidden[inputs.last], query[inputs.last], Nodes.roots(inputs.roots))

    @torch.inference_mode()
    def level(self, nodes: Nodes) -> Tensor:
        """[B * W, E]: the output layer's inputs of a level of draft tokens."""
        self._depth += 1
        hidden, normed = self._fused.inputs(nodes.tokens, self._outputs, nodes.above)
        return self._through(
            hidden, self._fused.project(normed, nodes.positions, nodes.rows), nodes
        )

    def _through(self, hidden: Tensor, query: Tensor, nodes: Nodes) -> Tensor:
        """hidden [N, E] is changed in place."""
        runner, fused, block = self._runner, self._fused, self._runner.block
        attended = self._attend("own", query, runner.storage.last(1), nodes)
        change = fused.attended(attended)
        if runner.window is not None:
            change = self._cross(hidden, change, nodes)
        normed = add_norm(hidden, change, *_norm(block.post_attention_layernorm))
        change = fused.down(fused.gate_up(normed))
        if runner.config.kind == MTP:
            self._outputs = add_norm(hidden, change, *_norm(block.final_layernorm))
            return self._outputs
        self._outputs, final = hidden, runner.head.norm
        if isinstance(final, nn.Identity):
            return hidden.add_(change.sum(0) if change.dim() > hidden.dim() else change)
        return add_norm(hidden, change, *_norm(final))

    def _cross(self, hidden: Tensor, change: Tensor, nodes: Nodes) -> Tensor:
        """What attention to the target's rows adds: all layers at once, as one layer with more
        heads. The change before it is added to hidden in place."""
        runner = self._runner
        normed = add_norm(hidden, change, *_norm(runner.head.cross_layernorm))
        query = self._fused.cross_query(normed)
        angles, size = (self._fused.cosine, self._fused.sine), runner.config.head_size
        turned = rotate(query, nodes.positions, *angles, size)
        rows = runner.model.arena.storage.last(runner.config.cross_layers)
        attended = self._attend("target", turned, rows, nodes)
        return self._fused.crossed(attended)

    def _attend(self, whose: str, query: Tensor, rows: Tensor, nodes: Nodes) -> Tensor:
        keys, values = rows
        plan = self._inputs.attention(whose, self._depth)
        found = attend(query, keys, values, plan, nodes.bits, scale=self._runner.scale)
        return found.view(len(query), -1)


def _product(linear: nn.Linear, *, cut: bool = False) -> LevelProduct:
    bias = None if linear.bias is None else linear.bias.detach()
    return LevelProduct(linear.weight.detach(), bias, cut=cut)


def _joined(*linears: nn.Linear, gated: bool = False) -> LevelProduct:
    """Linear layers with the same input as one product; their weights are parts of its own now."""
    weight = torch.cat([each.weight.detach() for each in linears])
    for part, each in zip(weight.split([len(x.weight) for x in linears]), linears, strict=True):
        each.weight.data = part
    biased = linears[0].bias is not None
    bias = torch.cat([each.bias.detach() for each in linears]) if biased else None
    return LevelProduct(weight, bias, gated=gated)


def _norm(module: nn.Module) -> tuple[Tensor, float]:
    return module.weight.detach(), module.epsilon
