"""Llama-shaped decoders on a GPU in few launches: for few rows everything is part of a product,
for many the library's products do the work and small kernels stand between them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from graft.kernels.decoder_triton import add_norm, move_rows, rotate_and_store, swiglu
from graft.kernels.product_triton import product
from graft.kernels.tree_attention_triton import attend
from graft.models.device_step import DeviceStep
from graft.models.llama_shape import LayerWeights, LlamaShape, LlamaWeights
from graft.models.storage import LazyRowStorage

FEW = 16  # rows up to which our fused products are faster than the library's
TABLE = 1 << 17  # positions whose angles are computed at first, if the model has as many


class TritonLayers:
    """Computes a step that is on the device; its inputs stay at the same addresses."""

    def __init__(self, shape: LlamaShape, weights: LlamaWeights) -> None:
        assert weights.layers[0].scales is None, "int8 products run in panels or the hook"
        self.shape, self.weights = shape, weights
        head = weights.head
        self.storage = LazyRowStorage(
            shape.layers, shape.kv_heads, shape.head_size, head.dtype, head.device
        )
        self._rotary: tuple[Tensor, Tensor] = (head.new_empty(0), head.new_empty(0))
        self.queries: list[Tensor] | None = None  # of the layers so far, while they are wanted

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.shape.heads // self.shape.kv_heads

    def reach(self, positions: int) -> bool:
        """Let the tables cover so many positions; whether they were computed again."""
        if positions <= len(self._rotary[0]):
            return False
        wanted = max(positions, min(self.shape.positions, TABLE), 2 * len(self._rotary[0]))
        tables = self.shape.rotary_tables(wanted)
        self._rotary = tuple(table.to(self.weights.head.device) for table in tables)
        return True

    def features(self, step: DeviceStep) -> Tensor:
        """Make the deferred moves, write keys and values, and return features [N, E], the inputs
        of the output layer."""
        move_rows(self.storage.kv, step.moves, step.moved)
        hidden = F.embedding(step.tokens, self.weights.embedding)  # [N, E]
        few = len(hidden) <= FEW and hidden.dtype != torch.float16
        return self._run_fused(step, hidden) if few else self._run_apart(step, hidden)

    def logits(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """[M, V] float32 of features [M, E], in `out` if there is one."""
        found = F.linear(features, self.weights.head)
        return found.float() if out is None else out.copy_(found)

    def compute_first(self, step: DeviceStep, layers: int) -> None:
        """Make the deferred moves, write keys and values of the first `layers` alone."""
        move_rows(self.storage.kv, step.moves, step.moved)
        self._run_apart(step, F.embedding(step.tokens, self.weights.embedding), layers)

    def _run_fused(self, step: DeviceStep, hidden: Tensor) -> Tensor:
        """All layers and the last norm; norms, gates and sums are part of the products."""
        epsilon = self.shape.epsilon
        for i, layer in enumerate(self.weights.layers):
            norm = (layer.attention_norm, epsilon)
            qkv = product(hidden, layer.qkv, norm=norm, bias=layer.qkv_bias)
            product(self._attend(step, i, layer, qkv), layer.output, residual=hidden)
            gated = product(hidden, layer.gate_up, norm=(layer.mlp_norm, epsilon), gated=True)
            product(gated, layer.down, residual=hidden)
        return add_norm(hidden, None, self.weights.final_norm, epsilon)

    def _run_apart(self, step: DeviceStep, hidden: Tensor, layers: int | None = None) -> Tensor:
        """The same by the library's products, of all layers or the first ones."""
        epsilon, change = self.shape.epsilon, None
        for i, layer in enumerate(self.weights.layers[:layers]):
            normed = add_norm(hidden, change, layer.attention_norm, epsilon)
            attended = self._attend(step, i, layer, F.linear(normed, layer.qkv, layer.qkv_bias))
            normed = add_norm(hidden, F.linear(attended, layer.output), layer.mlp_norm, epsilon)
            change = F.linear(swiglu(F.linear(normed, layer.gate_up)), layer.down)
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
