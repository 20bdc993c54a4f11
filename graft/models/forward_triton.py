"""Llama-shaped decoders on a GPU: the library's products, and few launches between them."""

import torch.nn.functional as F
from torch import Tensor

from graft.kernels.decoder_triton import add_norm, move_rows, rotate_and_store, swiglu
from graft.kernels.tree_attention_triton import attend
from graft.models.device_step import DeviceStep
from graft.models.llama_shape import LayerWeights, LlamaShape, LlamaWeights
from graft.models.storage import LazyRowStorage

TABLE = 1 << 17  # positions whose angles are kept from the start, if the model has as many


class TritonLayers:
    """Computes a step that is on the device; all it reads lies where it always lay."""

    def __init__(self, shape: LlamaShape, weights: LlamaWeights) -> None:
        assert weights.layers[0].scales is None, "int8 products run in panels or the hook"
        self.shape, self.weights = shape, weights
        head = weights.head
        self.storage = LazyRowStorage(
            shape.layers, shape.kv_heads, shape.head_size, head.dtype, head.device
        )
        self._rotary: tuple[Tensor, Tensor] = (head.new_empty(0), head.new_empty(0))

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.shape.heads // self.shape.kv_heads

    def reach(self, positions: int) -> bool:
        """Make the tables reach so many positions; whether they were made anew."""
        if positions <= len(self._rotary[0]):
            return False
        tables = self.shape.rotary_tables(max(positions, min(self.shape.positions, TABLE)))
        self._rotary = tuple(table.to(self.weights.head.device) for table in tables)
        return True

    def compute(self, step: DeviceStep, outputs: Tensor | None) -> Tensor:
        """Move the rows that are due, write keys and values, and give the logits [M, V] float32
        of the nodes `outputs`, None for all."""
        move_rows(self.storage.kv, step.moves, step.moved)
        hidden, change = F.embedding(step.tokens, self.weights.embedding), None  # [N, E]
        for i, layer in enumerate(self.weights.layers):
            normed = self._add_norm(hidden, change, layer.attention_norm)
            change = self._attend(step, i, layer, normed)
            normed = self._add_norm(hidden, change, layer.mlp_norm)
            change = F.linear(swiglu(F.linear(normed, layer.gate_up)), layer.down)
        normed = self._add_norm(hidden, change, self.weights.final_norm)
        wanted = normed if outputs is None else normed[outputs]
        return F.linear(wanted, self.weights.head).float()

    def _add_norm(self, hidden: Tensor, change: Tensor | None, weight: Tensor) -> Tensor:
        return add_norm(hidden, change, weight, self.shape.epsilon)

    def _attend(self, step: DeviceStep, index: int, layer: LayerWeights, normed: Tensor) -> Tensor:
        keys, values = self.storage.kv[:, index]  # [K, rows, D] each
        query = rotate_and_store(
            F.linear(normed, layer.qkv, layer.qkv_bias), step.positions, *self._rotary, step.rows,
            keys, values, layer.head_norms, self.shape.epsilon,
        )  # fmt: skip
        attended = attend(
            query, keys, values, step.plan, scale=self.shape.scale, window=layer.window
        )
        return F.linear(attended.view(len(normed), -1), layer.output)
