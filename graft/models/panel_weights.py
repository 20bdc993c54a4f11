"""A decoder's weights in the layout of the CPU kernels: panels, one array for all layers.

16-bit weights stay 16 bits wide and are widened in registers; sums are float32. So bfloat16 and
float16 halve a step's memory traffic and round the weights alone. int8 weights stay int8; their
scales multiply the sums.
"""

from dataclasses import dataclass

import numpy as np
import torch

from graft.kernels.panels import LANES
from graft.kernels.products import pack_weight
from graft.models.llama_shape import LlamaWeights

_BITS = {
    torch.float32: np.float32,
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
    torch.int8: np.int8,
}


@dataclass(frozen=True, slots=True)
class PanelWeights:
    """All layers' weights, packed: [L, panels, K, 16] each; norms and biases [L, ...] float32."""

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
    head: np.ndarray  # [panels, E, 16]
    embedding: np.ndarray  # [V, E], or empty when tied: then rows are taken from `head`

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
    """Panels of every product's weight, cast to `dtype` one by one, so that the peak stays near one
    copy. None keeps the dtypes."""

    def stored(weight: torch.Tensor) -> np.ndarray:
        return bits(weight.to(dtype or weight.dtype))

    def stack(parts: list[torch.Tensor]) -> np.ndarray:
        first = pack_weight(stored(parts[0]))
        packed = np.zeros((len(parts), *first.shape), first.dtype)
        # All are cast into this: new memory for each takes longer than the cast.
        cast = torch.empty(parts[0].shape, dtype=dtype or parts[0].dtype)
        for panels, part in zip(packed, parts, strict=True):
            pack_weight(bits(part if part.dtype == cast.dtype else cast.copy_(part)), panels)
        return packed

    def floats(parts: list[torch.Tensor]) -> np.ndarray:
        return torch.stack([part.to(dtype or part.dtype) for part in parts]).float().numpy()

    def scales(name: str) -> np.ndarray:
        """Of one product, padded to whole panels."""
        if weights.layers[0].scales is None:
            return np.empty((len(weights.layers), 0), np.float32)
        given = floats([getattr(layer.scales, name) for layer in weights.layers])
        return np.pad(given, ((0, 0), (0, -given.shape[1] % LANES)))

    layers = weights.layers
    tied = weights.embedding.data_ptr() == weights.head.data_ptr()
    nothing = torch.empty(0)
    return PanelWeights(
        attention_norm=floats([layer.attention_norm for layer in layers]),
        qkv=stack([layer.qkv for layer in layers]),
        qkv_bias=floats([nothing if x.qkv_bias is None else x.qkv_bias for x in layers]),
        head_norms=floats(
            [
                nothing.reshape(0, 1) if x.head_norms is None else torch.stack(x.head_norms)
                for x in layers
            ]
        ),
        output=stack([layer.output for layer in layers]),
        mlp_norm=floats([layer.mlp_norm for layer in layers]),
        gate_up=stack([layer.gate_up for layer in layers]),
        down=stack([layer.down for layer in layers]),
        windows=np.array([layer.window or 0 for layer in layers], np.int64),
        scales=tuple(scales(name) for name in ("qkv", "output", "gate_up", "down")),
        final_norm=floats([weights.final_norm])[0],
        head=pack_weight(stored(weights.head)),
        embedding=stored(weights.embedding[:0] if tied else weights.embedding.clone()),
    )
