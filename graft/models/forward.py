"""The lean forward of Llama-shaped decoders in PyTorch: few operations, fused projections."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graft.kernels.tree_attention_torch import tree_attention
from graft.kernels.tree_layout import TreeLayout
from graft.models.llama_shape import LayerWeights, LlamaShape, LlamaWeights
from graft.models.storage import RowStorage
from graft.sampling import upload


class LeanForward:
    """Runs over the weights as they are, in their dtype and on their device."""

    exact, sizes = False, ()

    def __init__(
        self,
        shape: LlamaShape,
        weights: LlamaWeights,
        attention: Callable[..., Tensor] = tree_attention,
    ) -> None:
        assert weights.layers[0].scales is None, "int8 products run in panels or the hook"
        self.shape, self.weights, self.attention = shape, weights, attention
        head = weights.head
        self.asynchronous = head.is_cuda
        self.feature_layers: frozenset[int] = frozenset()
        self._kept: dict[int, Tensor] = {}  # by layer, -1 for the last one's output
        self._queries: list[Tensor] | None = None  # of the layers so far, while they are wanted
        self.storage = RowStorage(
            shape.layers, shape.kv_heads, shape.head_size, head.dtype, head.device
        )

    @torch.inference_mode()
    def run(self, tokens: np.ndarray | Tensor, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """Write the nodes' keys and values, return logits [M, V] float32 of the nodes `outputs`."""
        self._kept = {}
        hidden = self._run_layers(tokens, layout, len(self.weights.layers), self._kept)
        if self.feature_layers:
            self._kept[-1] = hidden
        wanted = hidden[torch.from_numpy(outputs).to(hidden.device)]
        return F.linear(self._norm(wanted, self.weights.final_norm), self.weights.head).float()

    @torch.inference_mode()
    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """See Forward."""
        self._run_layers(tokens, layout, layers)

    def _run_layers(
        self,
        tokens: np.ndarray | Tensor,
        layout: TreeLayout,
        layers: int,
        kept: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """[N, E] behind the first `layers`; inputs of the feature layers go to `kept`."""
        device, dtype = self.weights.head.device, self.weights.head.dtype
        hidden = F.embedding(torch.as_tensor(tokens).to(device), self.weights.embedding)  # [N, E]
        rotary = [
            torch.from_numpy(x).to(device, dtype)[:, None]
            for x in self.shape.rotary(layout.positions)
        ]
        rows = torch.from_numpy(layout.rows).to(device)
        for i, layer in enumerate(self.weights.layers[:layers]):
            if kept is not None and i in self.feature_layers:
                kept[i] = hidden
            normed = self._norm(hidden, layer.attention_norm)
            hidden = hidden + self._attend(i, layer, normed, rotary, (rows, layout))
            gates, up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gates) * up, layer.down)
        return hidden

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return self.shape.frequencies()

    @torch.inference_mode()
    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> Tensor:
        """See Forward."""
        rows = upload(torch.from_numpy(nodes), self.weights.head.device)
        found = [self._kept[layer][rows] for layer in layers]
        for place, layer in enumerate(layers):
            if layer == -1:
                found[place] = self._norm(found[place], self.weights.final_norm)
        return torch.cat(found, -1)

    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> Tensor:
        """See Forward."""
        self._queries = found = []
        try:
            self.run(tokens, layout, np.array([len(tokens) - 1]))
        finally:
            self._queries = None
        return torch.stack(found)

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """See Forward."""
        return self.weights.layers[layer].sees_all(tokens)

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""
        return F.embedding(tokens, self.weights.embedding)

    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """See Forward."""
        return self.weights.head if tokens is None else self.weights.head[tokens]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.epsilon)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        normed: Tensor,
        rotary: list[Tensor],
        where: tuple[Tensor, TreeLayout],
    ) -> Tensor:
        shape, (rows, layout) = self.shape, where
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, shape.head_size)
        query, key, value = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        if layer.head_norms:
            query = self._norm(query, layer.head_norms[0])
            key = self._norm(key, layer.head_norms[1])
        keys, values = self.storage.kv[:, index]  # [K, rows, D] each
        keys.index_copy_(1, rows, _rotate(key, rotary).transpose(0, 1))
        values.index_copy_(1, rows, value.transpose(0, 1))
        query = _rotate(query, rotary)
        if self._queries is not None:
            self._queries.append(query.transpose(0, 1) * shape.scale)
        attended = self.attention(
            query, keys, values, layout, scale=shape.scale, window=layer.window
        )
        return F.linear(attended.reshape(len(normed), -1), layer.output)


def _rotate(x: Tensor, rotary: list[Tensor]) -> Tensor:
    """[N, heads, D] turned by cosine and sine [N, 1, D / 2]."""
    cosine, sine = rotary
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
