"""A decoder's weights in the layout of the CPU kernels: panels, one array for all layers.

16-bit weights stay 16 bits wide and are widened in registers; sums are float32. So bfloat16 and
float16 halve a step's memory traffic and round the weights alone. int8 weights stay int8; their
scales multiply the sums. Weights in GGUF's blocks: `gguf_weights.py`.
"""

from collections.abc import Callable, Sequence
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
    torch.float8_e4m3fn: np.uint8,
}
_ROWS = 1 << 13  # of the vocabulary that are read at once, whole panels
PRODUCTS = ("qkv", "output", "gate_up", "down")


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
    embedding_rows: Callable[[np.ndarray], np.ndarray]  # [..., E] float32 of token ids
    output_rows: Callable[[np.ndarray], torch.Tensor]  # [..., E] in the weights' dtype
    inner_weights: int  # of all layers' `down`
    blocks: tuple[np.ndarray, ...] = ()  # that the tables point to

    def layers(self, some: slice) -> tuple[np.ndarray | tuple[np.ndarray, ...], ...]:
        """The arguments of `run_layers` for some layers."""
        own = (
            self.attention_norm, self.qkv, self.qkv_bias, self.head_norms,
            self.output, self.mlp_norm, self.gate_up, self.down, self.windows,
        )  # fmt: skip
        return (*(each[some] for each in own), tuple(each[some] for each in self.scales))


def widen(stored: np.ndarray) -> np.ndarray:
    """float32 values of stored weights."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if stored.dtype == np.int16:
        return stored.view(np.float16).astype(np.float32)
    return stored.astype(np.float32)


def bits(weight: torch.Tensor) -> np.ndarray:
    """A weight's bits as an array of the dtype that stands for them in the kernels."""
    stored = _BITS[weight.dtype]
    return weight.detach().contiguous().view(getattr(torch, np.dtype(stored).name)).numpy()


def from_bits(stored: np.ndarray) -> torch.Tensor:
    """The weight of such an array."""
    [dtype] = [dtype for dtype, kind in _BITS.items() if kind == stored.dtype]
    return torch.from_numpy(stored).view(dtype)


def pack_weights(weights: LlamaWeights, dtype: torch.dtype | None = None) -> PanelWeights:
    """Panels of every product's weight, cast to `dtype` as they are packed; int8 codes stay, and
    None keeps all dtypes.

    Each layer is used once: of layers that are read on access one is in memory at a time.
    """
    layers = _pack_layers(weights.layers, dtype)
    head, tied = _pack_head(weights.head, dtype), weights.head is weights.embedding
    embedding = None if tied else _copied(weights.embedding, dtype)

    def output_bits(tokens: np.ndarray) -> np.ndarray:
        return head[tokens // LANES, :, tokens % LANES]

    def embedding_rows(tokens: np.ndarray) -> np.ndarray:
        return widen(output_bits(tokens) if embedding is None else embedding[tokens])

    return PanelWeights(
        scales=tuple(layers.pop(f"{name}_scale") for name in PRODUCTS),
        **layers,
        final_norm=weights.final_norm.to(dtype=dtype).float().numpy(),
        head=head,
        embedding_rows=embedding_rows,
        output_rows=lambda tokens: from_bits(output_bits(tokens)),
        inner_weights=layers["down"].size,
    )


def _pack_head(weight: torch.Tensor, dtype: torch.dtype | None) -> np.ndarray:
    """[panels, E, 16], read and packed some rows at a time."""
    first = bits(weight[:1].to(dtype=dtype))
    panels = np.zeros((-(-len(weight) // LANES), first.shape[1], LANES), first.dtype)
    for start in range(0, len(weight), _ROWS):
        part = bits(weight[start : start + _ROWS].to(dtype=dtype))
        pack_weight(part, panels[start // LANES : (start + _ROWS) // LANES])
    return panels


def _copied(weight: torch.Tensor, dtype: torch.dtype | None) -> np.ndarray:
    """[V, E], read some rows at a time."""
    first = bits(weight[:1].to(dtype=dtype))
    rows = np.empty((len(weight), first.shape[1]), first.dtype)
    for start in range(0, len(weight), _ROWS):
        rows[start : start + _ROWS] = bits(weight[start : start + _ROWS].to(dtype=dtype))
    return rows


class _Cast:
    """Casts weights of one shape into one buffer: new memory takes longer than the cast."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._buffer = torch.empty(0)

    def bits(self, weight: torch.Tensor) -> np.ndarray:
        """Valid until the next call."""
        if self._dtype in (None, weight.dtype) or weight.dtype == torch.int8:
            return bits(weight)
        if self._buffer.shape != weight.shape:
            self._buffer = torch.empty(weight.shape, dtype=self._dtype)
        return bits(self._buffer.copy_(weight))


def _pack_layers(
    layers: Sequence[LayerWeights], dtype: torch.dtype | None
) -> dict[str, np.ndarray]:
    """Products, norms, biases, windows and scales of all layers, [L, ...] each."""
    packed: dict[str, np.ndarray] = {}
    casts = {name: _Cast(dtype) for name in PRODUCTS}

    def add(place: int, layer: LayerWeights) -> None:
        for name, part in small_weights(layer, dtype).items():
            if not place:
                packed[name] = np.empty((len(layers), *part.shape), part.dtype)
            packed[name][place] = part
        for name, cast in casts.items():
            part = cast.bits(getattr(layer, name))
            if not place:
                panels = (-(-part.shape[0] // LANES), part.shape[1], LANES)
                packed[name] = np.zeros((len(layers), *panels), part.dtype)
            pack_weight(part, packed[name][place])

    for place in range(len(layers)):
        add(place, layers[place])
    return packed


def small_weights(layer: LayerWeights, dtype: torch.dtype | None = None) -> dict[str, np.ndarray]:
    """What a layer has beside its products: norms and biases, rounded to `dtype` if given, and
    scales, padded to whole panels."""
    nothing = torch.empty(0)
    tensors = {
        "attention_norm": layer.attention_norm,
        "qkv_bias": nothing if layer.qkv_bias is None else layer.qkv_bias,
        "head_norms": nothing.reshape(0, 1)
        if layer.head_norms is None
        else torch.stack(layer.head_norms),
        "mlp_norm": layer.mlp_norm,
    }
    tensors = {name: tensor.to(dtype=dtype) for name, tensor in tensors.items()}
    for name in PRODUCTS:
        scale = nothing if layer.scales is None else getattr(layer.scales, name)
        tensors[f"{name}_scale"] = F.pad(scale, (0, -len(scale) % LANES))
    found = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    return found | {"windows": np.array(layer.window or 0, np.int64)}
