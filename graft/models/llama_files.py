"""Llama-shaped decoders straight from safetensors, without transformers' modules."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from graft.models.checkpoints.folder import read_header, weight_files
from graft.models.llama_shape import (
    LayerWeights,
    LlamaShape,
    LlamaWeights,
    fused,
    head_size_of,
    is_llama_config,
    shape_of,
    window_of_layer,
)
from graft.models.rope import rope_of

EMBEDDING, FINAL_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
PRODUCTS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
IGNORED = "rotary_emb.inv_freq"  # some old files hold what the config says, too


def can_read(folder: Path, config: Any) -> bool:  # noqa: ANN401
    """Whether `read_files` reads this checkpoint: its config is Llama's and its files hold exactly
    the weights that the config names."""
    if not is_llama_config(config) or getattr(config, "quantization_config", None):
        return False
    found = [name for file in weight_files(folder) for name in read_header(file)["tensors"]]
    stored = {name for name in found if not name.endswith(IGNORED)}
    return stored == set(_names(config))


def _names(config: Any) -> Iterator[str]:  # noqa: ANN401
    yield from (EMBEDDING, FINAL_NORM)
    if not config.tie_word_embeddings:
        yield OUTPUT
    for layer in range(config.num_hidden_layers):
        own = [f"{name}.weight" for name in PRODUCTS]
        own += [*NORMS, *_biases(config), *(HEAD_NORMS if config.model_type == "qwen3" else ())]
        yield from (f"model.layers.{layer}.{name}" for name in own)


def _biases(config: Any) -> list[str]:  # noqa: ANN401
    """Of queries, keys and values. Where Llama has them, its output has one too: not read here."""
    return [f"{name}.bias" for name in PRODUCTS[:3]] if config.model_type == "qwen2" else []


def read_files(
    folder: Path,
    config: Any,  # noqa: ANN401
    dtype: torch.dtype | None,
    device: torch.device,
) -> tuple[LlamaShape, LlamaWeights]:
    """Shape and (fused) weights of a checkpoint for which `can_read` holds; with the files' dtypes
    where `dtype` is None."""
    rope = rope_of(config.rope_parameters, head_size_of(config), config.max_position_embeddings)
    with _opened(folder) as files:

        def load(name: str) -> Tensor:
            return files[name].get_tensor(name).to(device=device, dtype=dtype)

        embedding = load(EMBEDDING)
        weights = LlamaWeights(
            embedding=embedding,
            layers=[_read_layer(load, config, i) for i in range(config.num_hidden_layers)],
            final_norm=load(FINAL_NORM),
            head=embedding if config.tie_word_embeddings else load(OUTPUT),
        )
    return shape_of(config, rope.to(device)), weights


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, Any]]:
    """The open file of every tensor's name."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, "pt")) for file in weight_files(folder)]
        yield {name: file for file in files for name in file.keys()}  # noqa: SIM118


def _read_layer(
    load: Callable[[str], Tensor],
    config: Any,  # noqa: ANN401
    layer: int,
) -> LayerWeights:
    prefix = f"model.layers.{layer}."
    qkv, output, gate_up, down = fused([load(f"{prefix}{name}.weight") for name in PRODUCTS])
    biases = [load(prefix + name) for name in _biases(config)]
    normed = config.model_type == "qwen3"
    return LayerWeights(
        attention_norm=load(prefix + NORMS[0]),
        qkv=qkv,
        qkv_bias=torch.cat(biases) if biases else None,
        head_norms=(load(prefix + HEAD_NORMS[0]), load(prefix + HEAD_NORMS[1])) if normed else None,
        output=output,
        mlp_norm=load(prefix + NORMS[1]),
        gate_up=gate_up,
        down=down,
        window=window_of_layer(config, layer),
    )
