"""Shape and weights of Llama-shaped decoders, read off transformers' modules.

Llama, Mistral, Qwen2, Qwen3 and SmolLM differ in biases, head norms and windows only. All others
(other norms, activations, scalings, experts) run through transformers' own modules.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from graft.kernels.fragment_matrix import for_device
from graft.kernels.packed_matrix import joined
from graft.models.int8 import codes_of, is_plain, is_symmetric_int8, scales_of
from graft.models.rope import STATIC_ROPE, Rope

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
PLAIN_MODULES = ("torch.nn.modules.", "transformers.activations", "transformers.models.")


@dataclass(frozen=True, slots=True)
class ProductScales:
    """What the columns of a layer's int8 products are multiplied by, [out] float32 each."""

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; products are stored [out, in], on a GPU also as `PackedMatrix`
    or `FragmentMatrix`."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None  # of queries and keys
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    window: int | None
    scales: ProductScales | None = None  # None unless the products are int8

    def sees_all(self, tokens: int) -> bool:
        """Whether no window hides any of so many tokens."""
        return self.window is None or tokens <= self.window


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A whole decoder; `head` and `embedding` are one object where they are tied. Layers and rows
    of these two may be read on access, see `llama_files.py`."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    final_norm: Tensor
    head: Tensor

    def in_memory(self) -> "LlamaWeights":
        """The same with everything read that would be read on access."""
        embedding = self.embedding[:]
        head = embedding if self.head is self.embedding else self.head[:]
        return LlamaWeights(embedding, list(self.layers), self.final_norm, head)


@dataclass(slots=True)
class LlamaShape:
    """Sizes and constants of a decoder."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    positions: int  # that the model was made for
    epsilon: float
    scale: float
    rope: Rope = field(repr=False)
    _cosine: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32), repr=False)
    _sine: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32), repr=False)

    def rotary(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """cosine, sine [N, D / 2] float32 at these positions, from a table that grows."""
        wanted = int(positions.max()) + 1
        if wanted > len(self._cosine):
            size = max(wanted, 2 * len(self._cosine), 512)
            self._cosine, self._sine = (x.cpu().numpy() for x in self.rotary_tables(size))
        return self._cosine[positions], self._sine[positions]

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return [self.rope.frequencies]

    def rotary_tables(self, positions: int) -> tuple[Tensor, Tensor]:
        """cosine, sine [positions, D / 2] float32 on the model's device."""
        return self.rope.tables(torch.arange(positions, device=self.rope.frequencies.device))


def shape_of(config: Any, rope: Rope) -> LlamaShape:  # noqa: ANN401
    """The shape that a config of transformers, or a copy of one, describes."""
    head_size = head_size_of(config)
    return LlamaShape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=head_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        epsilon=config.rms_norm_eps,
        scale=head_size**-0.5,
        rope=rope,
    )


def head_size_of(config: Any) -> int:  # noqa: ANN401
    """D, which some configs leave to be computed."""
    given = getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def is_llama_config(config: Any) -> bool:  # noqa: ANN401
    """Whether the lean forward computes models of this config; the probe at load decides."""
    if config.model_type not in MODEL_TYPES:
        return False
    sizes = (config.hidden_size, config.intermediate_size, head_size_of(config))
    rope = config.rope_parameters or {}
    return (
        config.hidden_act == "silu"
        and rope.get("rope_type") in STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and all(size % 16 == 0 for size in sizes)
    )


def window_of_layer(config: Any, layer: int) -> int | None:  # noqa: ANN401
    """How many tokens a layer's attention reaches back; None for all."""
    if config.model_type == "mistral":
        return config.sliding_window
    types = config.layer_types if config.model_type in ("qwen2", "qwen3") else None
    return config.sliding_window if types and types[layer] == "sliding_attention" else None


def frequencies_of(module: nn.Module) -> list[Tensor]:
    """The inverse frequencies that rotary modules inside keep as buffers."""
    return [
        buffer
        for name, buffer in module.named_buffers()
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq")
    ]


def is_llama_shaped(model: "PreTrainedModel") -> bool:
    """Whether the lean forward computes this model; the probe at load decides."""
    if not is_llama_config(model.config) or not all(map(_is_untouched, model.modules())):
        return False
    attention = model.model.layers[0].self_attn
    return (
        getattr(attention.o_proj, "bias", None) is None
        and getattr(model.model.layers[0].mlp.down_proj, "bias", None) is None
        and all(type(m) is nn.Linear for m in (attention.q_proj, model.lm_head))
        and _is_stored_evenly(model)
    )


def _is_untouched(module: nn.Module) -> bool:
    """Whether a module computes what its class in torch or transformers does.

    Adapters, hooks and replaced methods are run by the modules themselves.
    """
    return (
        type(module).__module__.startswith(PLAIN_MODULES)
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and "forward" not in vars(module)
    )


def _is_stored_evenly(model: "PreTrainedModel") -> bool:
    """Whether all products of the layers are plain, or all int8; the ends must be plain."""
    weights = [p.weight for layer in model.model.layers for p in _products(layer)]
    ends = (model.model.embed_tokens.weight, model.lm_head.weight)
    return all(map(is_plain, ends)) and (
        all(map(is_plain, weights)) or all(map(is_symmetric_int8, weights))
    )


def has_int8_products(model: "PreTrainedModel") -> bool:
    """Whether a Llama-shaped model's layers are stored in int8."""
    return not is_plain(model.model.layers[0].self_attn.q_proj.weight)


def _products(layer: nn.Module) -> list[nn.Linear]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
        mlp.gate_proj, mlp.up_proj, mlp.down_proj,
    ]  # fmt: skip


def read_llama(
    model: "PreTrainedModel", *, in_place: bool = False
) -> tuple[LlamaShape, LlamaWeights]:
    """Shape and (fused) weights of a model for which `is_llama_shaped` holds.

    `in_place`: its own projections become parts of the fused ones, and no weight is there twice.
    """
    config, decoder = model.config, model.model
    rotary = decoder.rotary_emb
    shape = shape_of(config, Rope(rotary.inv_freq.detach().float(), rotary.attention_scaling))
    embedding = decoder.embed_tokens.weight.detach()
    head = model.lm_head.weight.detach()
    weights = LlamaWeights(
        embedding=embedding,
        layers=[
            _read_layer(
                layer,
                getattr(layer.self_attn, "sliding_window", window_of_layer(config, i)),
                in_place=in_place,
            )
            for i, layer in enumerate(decoder.layers)
        ],
        final_norm=decoder.norm.weight.detach(),
        head=embedding if head.data_ptr() == embedding.data_ptr() else head,
    )
    return shape, weights


def _read_layer(layer: nn.Module, window: int | None, *, in_place: bool) -> LayerWeights:
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weights, scales = fused_codes([p.weight.detach() for p in _products(layer)])
    qkv, output, gate_up, down = weights
    if in_place and scales is None:
        _share(projections, qkv)
        _share((layer.mlp.gate_proj, layer.mlp.up_proj), gate_up)
    biased = projections[0].bias is not None
    normed = hasattr(attention, "q_norm")
    return LayerWeights(
        attention_norm=layer.input_layernorm.weight.detach(),
        qkv=qkv,
        qkv_bias=torch.cat([p.bias.detach() for p in projections]) if biased else None,
        head_norms=(attention.q_norm.weight.detach(), attention.k_norm.weight.detach())
        if normed
        else None,
        output=output,
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=gate_up,
        down=down,
        window=window,
        scales=scales,
    )


def _share(projections: Iterable[nn.Linear], fused: Tensor) -> None:
    """Let the projections' weights be rows of the fused one."""
    first = 0
    for projection in projections:
        last = first + projection.weight.shape[0]
        projection.weight.data = fused[first:last]
        first = last


def fused_codes(
    weights: list[Tensor],
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], ProductScales | None]:
    """The fused weights, int8 codes with their scales where they are quantised."""
    if not isinstance(weights[0], Tensor):  # packed matrices
        qkv, output, gate_up, down = map(for_device, fused(weights))
        return (qkv, output, gate_up, down), None
    if is_plain(weights[0]):
        return fused(weights), None
    scales = ProductScales(*fused([scales_of(weight) for weight in weights]))
    return fused([codes_of(weight) for weight in weights]), scales


def fused(parts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """qkv, output, gate_up and down out of what belongs to each of `_products`."""
    query, key, value, output, gates, ups, down = parts
    join = torch.cat if isinstance(query, Tensor) else joined
    return join([query, key, value]), output, join([gates, ups]), down
