"""A decoder's weights in the layout of the CPU kernels: panels, one array for all layers.

16-bit weights stay 16 bits wide and are widened in registers; sums are float32. So bfloat16 and
float16 halve a step's memory traffic and round the weights alone. int8 weights stay int8; their
scales multiply the sums. Weights in GGUF's blocks: `gguf_weights.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from graft.kernels.panels import LANES
from graft.kernels.products import pack_weight
from graft.models.llama_shape import LayerWeights, LlamaWeights

_BITS = {
    torch.float32: np.float32,
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
    torch.int8: np.int8,
}
PRODUCTS = ("qkv", "output", "gate_up", "down")
TokenRows = Callable[[np.ndarray], torch.Tensor]  # [..., E] of token ids


@dataclass(frozen=True, slots=True)
class PanelWeights:
    """All layers' weights. Products are packed, [L, panels, K, 16] each, or tables of GGUF parts,
    [L, parts, 5] int64; norms and biases are [L, ...] float32."""

    attention_norm: np.ndarray
    qkv: np.ndarray
    qkv_bias: np.ndarray  # [L, 0] where there is none
    head_norms: np.ndarray  # [L, 2, D], or [L, 0, D]: norms of each query and key head
    output: np.ndarray
    mlp_norm: np.ndarray
    gate_up: np.ndarray  # gates first
    down: np.ndarray
    windows: np.ndarray  # [L] int64, 0 = none
    scales: tuple[np.ndarray, ...]  # of qkv, output, gate_up, down: [L, N] each, [L, 0] unless int8
    final_norm: np.ndarray  # [E]
    head: np.ndarray  # [panels, E, 16], or a table of parts
    embedding_rows: TokenRows
    output_rows: TokenRows
    inner_weights: int  # of all layers' `down`
    blocks: tuple[np.ndarray, ...] = ()  # that the tables point to

    def layers(self, first: int | None = None) -> tuple[np.ndarray | tuple[np.ndarray, ...], ...]:
        """The arguments of `run_layers`, of all layers or of the first ones."""
        own = (
            self.attention_norm, self.qkv, self.qkv_bias, self.head_norms,
            self.output, self.mlp_norm, self.gate_up, self.down, self.windows,
        )  # fmt: skip
        return (*(each[:first] for each in own), tuple(each[:first] for each in self.scales))


def bits(weight: torch.Tensor) -> np.ndarray:
    """A weight's bits as an array of the dtype that stands for them in the kernels."""
    stored = _BITS[weight.dtype]
    return weight.detach().contiguous().view(getattr(torch, np.dtype(stored).name)).numpy()


def from_bits(stored: np.ndarray) -> torch.Tensor:
    """The weight of such an array."""
    [dtype] = [dtype for dtype, kind in _BITS.items() if kind == stored.dtype]
    return torch.from_numpy(stored).view(dtype)


def pack_weights(weights: LlamaWeights) -> PanelWeights:
    """Panels of every product's weight.

    Each layer is used once: layers that are read on access are never in memory twice.
    """
    packed: dict[str, np.ndarray] = {}
    for i, layer in enumerate(weights.layers):
        own = small_weights(layer) | {
            name: pack_weight(bits(getattr(layer, name))) for name in PRODUCTS
        }
        for name, part in own.items():
            if name not in packed:
                packed[name] = np.empty((len(weights.layers), *part.shape), part.dtype)
            packed[name][i] = part
    head = pack_weight(bits(weights.head))
    tied = weights.embedding.data_ptr() == weights.head.data_ptr()
    embedding = bits(weights.embedding)[:0] if tied else bits(weights.embedding).copy()

    def output_rows(tokens: np.ndarray) -> torch.Tensor:
        return from_bits(head[tokens // LANES, :, tokens % LANES])

    def embedding_rows(tokens: np.ndarray) -> torch.Tensor:
        return from_bits(embedding[tokens])

    return PanelWeights(
        scales=tuple(packed.pop(f"{name}_scale") for name in PRODUCTS),
        **packed,
        final_norm=weights.final_norm.float().numpy(),
        head=head,
        embedding_rows=output_rows if tied else embedding_rows,
        output_rows=output_rows,
        inner_weights=packed["down"].size,
    )


def small_weights(layer: LayerWeights) -> dict[str, np.ndarray]:
    """What a layer has beside its products, scales padded to whole panels."""
    nothing = torch.empty(0)
    tensors = {
        "attention_norm": layer.attention_norm,
        "qkv_bias": nothing if layer.qkv_bias is None else layer.qkv_bias,
        "head_norms": nothing.reshape(0, 1)
        if layer.head_norms is None
        else torch.stack(layer.head_norms),
        "mlp_norm": layer.mlp_norm,
    }
    for name in PRODUCTS:
        scale = nothing if layer.scales is None else getattr(layer.scales, name)
        tensors[f"{name}_scale"] = F.pad(scale, (0, -len(scale) % LANES))
    found = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    return found | {"windows": np.array(layer.window or 0, np.int64)}
