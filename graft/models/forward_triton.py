"""Llama-shaped decoders on a GPU: a node's features follow from its own path, bit for bit.

Products have one order of summation for any number of rows (`product_choice`), attention has fixed
splits (`split_attention_triton`), norms and rotations work row by row, and every kernel rounds
where the others do. So a step's other nodes, its size and its graph change nothing.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from graft.kernels.decoder_triton import add_norm, move_rows, rotate_and_store
from graft.kernels.product_choice import ChosenProduct
from graft.kernels.split_attention_triton import attend
from graft.models.device_step import DeviceStep
from graft.models.llama_shape import LayerWeights, LlamaShape, LlamaWeights
from graft.models.storage import LazyRowStorage

NOTHING: Mapping[int, Tensor] = MappingProxyType({})
TABLE = 1 << 17  # positions whose angles are computed at first, if the model has as many


class TritonLayers:
    """Llama-shaped decoders in Triton (see `forward_graphed.Layers`)."""

    def __init__(self, shape: LlamaShape, weights: LlamaWeights) -> None:
        assert weights.layers[0].scales is None, "int8 products run in panels or the hook"
        self.shape, self.weights = shape, weights
        head = weights.head
        self.storage = LazyRowStorage(
            shape.layers, shape.kv_heads, shape.head_size, head.dtype, head.device
        )
        self._rotary: tuple[Tensor, Tensor] = (head.new_empty(0), head.new_empty(0))
        self.queries: list[Tensor] | None = None
        layers = weights.layers
        self._qkv = ChosenProduct([x.qkv for x in layers], [x.qkv_bias for x in layers])
        self._output = ChosenProduct([x.output for x in layers], cut=True)
        self._gate_up = ChosenProduct([x.gate_up for x in layers], gated=True)
        self._down = ChosenProduct([x.down for x in layers], cut=True)
        self._head = ChosenProduct([head])

    @property
    def group(self) -> int:
        """See Layers."""
        return self.shape.heads // self.shape.kv_heads

    @property
    def head(self) -> Tensor:
        """See Layers."""
        return self.weights.head

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return self.shape.frequencies()

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """See Forward."""
        return self.weights.layers[layer].sees_all(tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""
        return F.embedding(tokens, self.weights.embedding)

    def reach(self, positions: int) -> bool:
        """See Layers."""
        if positions <= len(self._rotary[0]):
            return False
        wanted = max(positions, min(self.shape.positions, TABLE), 2 * len(self._rotary[0]))
        tables = self.shape.rotary_tables(wanted)
        self._rotary = tuple(table.to(self.weights.head.device) for table in tables)
        return True

    def features(self, step: DeviceStep, kept: Mapping[int, Tensor] = NOTHING) -> Tensor:
        """See Layers."""
        move_rows(self.storage.kv, step.moves, step.moved)
        return self._run(step, kept=kept)

    def logits(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """See Layers."""
        if out is None:
            out = features.new_empty(len(features), len(self.weights.head), dtype=torch.float32)
        return self._head(0, features, out)

    def compute_first(self, step: DeviceStep, layers: int) -> None:
        """See Layers."""
        move_rows(self.storage.kv, step.moves, step.moved)
        self._run(step, layers)

    def _run(
        self, step: DeviceStep, layers: int | None = None, kept: Mapping[int, Tensor] = NOTHING
    ) -> Tensor:
        """All layers, or the first ones, and the last norm."""
        hidden = F.embedding(step.tokens, self.weights.embedding)  # [N, E]
        epsilon, change = self.shape.epsilon, None
        for i, layer in enumerate(self.weights.layers[:layers]):
            normed = add_norm(hidden, change, layer.attention_norm, epsilon)
            if i in kept:
                kept[i].copy_(hidden)
            attended = self._attend(step, i, layer, self._qkv(i, normed))
            normed = add_norm(hidden, self._output(i, attended), layer.mlp_norm, epsilon)
            change = self._down(i, self._gate_up(i, normed))
        return add_norm(hidden, change, self.weights.final_norm, epsilon)

    def _attend(self, step: DeviceStep, index: int, layer: LayerWeights, qkv: Tensor) -> Tensor:
        """[N, H * D] of qkv [N, (H + 2K) * D]."""
        keys, values = self.storage.kv[:, index]  # [K, rows, D] each
        query = rotate_and_store(
            qkv, step.positions, *self._rotary, step.rows, keys, values, layer.head_norms,
            self.shape.epsilon,
        )  # fmt: skip
        if self.queries is not None:
            self.queries.append(query.transpose(0, 1) * self.shape.scale)
        attended = attend(
            query, keys, values, step.plan, scale=self.shape.scale, window=layer.window
        )
        return attended.view(len(qkv), -1)
