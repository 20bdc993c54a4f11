"""config.json from a GGUF's metadata."""

import math
from importlib.metadata import version
from typing import Any

from graft.errors import CheckpointError
from graft.models.checkpoints.gguf_reader import GgufFile, damaged
from graft.models.checkpoints.gguf_tokenizer import all_tokens, end_ids

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
LLAMA3_CONTEXT, LOW_FREQUENCY, HIGH_FREQUENCY = 8192, 1.0, 4.0


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json; CheckpointError for a model that cannot be converted."""
    meta = gguf.metadata
    architecture = _supported_architecture(gguf)

    def value(key: str) -> Any:  # noqa: ANN401
        if f"{architecture}.{key}" not in meta:
            raise damaged(gguf.path, f"no {architecture}.{key}")
        return meta[f"{architecture}.{key}"]

    hidden, heads = value("embedding_length"), value("attention.head_count")
    rope = _rope(gguf, architecture)
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "dtype": "bfloat16",
        "vocab_size": len(all_tokens(gguf)),
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get(f"{architecture}.attention.head_count_kv", heads),
        "head_dim": meta.get(f"{architecture}.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": value("context_length"),
        # stored as float32: 1e-05 would read back as 9.999999747378752e-06
        "rms_norm_eps": float(f"{value('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors and architecture != "qwen2",
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "use_cache": True,
        "transformers_version": version("transformers"),
    }
    _check_tensors(gguf, config)
    return config


def _supported_architecture(gguf: GgufFile) -> str:
    meta = gguf.metadata
    architecture = meta.get("general.architecture")
    if meta.get("split.count", 1) > 1:
        raise CheckpointError(
            f"{gguf.path.name} is one of {meta['split.count']} parts; "
            "join them first with llama-gguf-split --merge"
        )
    if architecture not in ARCHITECTURES or meta.get(f"{architecture}.expert_count"):
        found = f"{architecture} with experts" if architecture in ARCHITECTURES else architecture
        raise CheckpointError(
            f"{gguf.path.name} holds the architecture {found!r}; "
            f"GGUF files of {', '.join(ARCHITECTURES)} can be converted: use a safetensors folder"
        )
    window = meta.get(f"{architecture}.attention.sliding_window", 0)
    if 0 < window < meta.get(f"{architecture}.context_length", 0):
        raise CheckpointError(
            f"{gguf.path.name} attends to a window of {window} tokens, which is not converted; "
            "use the model's safetensors folder instead"
        )
    return architecture


def _rope(gguf: GgufFile, architecture: str) -> dict[str, Any]:
    """Rotary settings; Llama 3's long-context factors are recognised by their tensor."""
    meta = gguf.metadata
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": meta.get(f"{architecture}.rope.freq_base", 10000.0),
    }
    scaling = meta.get(f"{architecture}.rope.scaling.type", "none")
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": meta[f"{architecture}.rope.scaling.factor"]}
    elif scaling != "none":
        raise CheckpointError(
            f"{gguf.path.name} scales positions by {scaling!r}, which is not converted; "
            "use the model's safetensors folder instead"
        )
    if ROPE_FACTORS in gguf.tensors:
        rope |= _llama3_rope(gguf, rope["rope_theta"])
    return rope


def _llama3_rope(gguf: GgufFile, theta: float) -> dict[str, Any]:
    """The file holds one divisor per frequency; they must be those Llama 3's settings give."""
    stored = gguf.load(ROPE_FACTORS).tolist()
    factor = max(stored)
    expected = llama3_factors(2 * len(stored), theta, factor)
    if any(abs(a - b) > 1e-3 * b for a, b in zip(stored, expected, strict=True)):
        raise CheckpointError(
            f"{gguf.path.name} scales positions in a way that is not converted; "
            "use the model's safetensors folder instead"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW_FREQUENCY,
        "high_freq_factor": HIGH_FREQUENCY,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }


def llama3_factors(head_dim: int, theta: float, factor: float) -> list[float]:
    """Llama 3.1's divisor of each rotary frequency: 1 for the high, `factor` for the low."""
    divisors = []
    for index in range(0, head_dim, 2):
        turns = LLAMA3_CONTEXT / (2 * math.pi * theta ** (index / head_dim))
        share = (turns - LOW_FREQUENCY) / (HIGH_FREQUENCY - LOW_FREQUENCY)
        share = min(max(share, 0.0), 1.0)
        divisors.append(1 / ((1 - share) / factor + share))
    return divisors


def generation_config(gguf: GgufFile) -> dict[str, Any]:
    """generation_config.json: the ids that start, end and pad."""
    ends = end_ids(gguf)
    settings = {
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": gguf.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in settings.items() if value is not None}


def _check_tensors(gguf: GgufFile, config: dict[str, Any]) -> None:
    """Refuse a file that lacks a tensor the model needs, or has one of another shape."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries = head * config["num_attention_heads"]
    keys = head * config["num_key_value_heads"]
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    _check_shape(gguf, "token_embd.weight", (config["vocab_size"], hidden))
    _check_shape(gguf, "output_norm.weight", (hidden,))
    if not config["tie_word_embeddings"]:
        _check_shape(gguf, "output.weight", (config["vocab_size"], hidden))
    for number in range(config["num_hidden_layers"]):
        for part, shape in layer.items():
            _check_shape(gguf, f"blk.{number}.{part}.weight", shape)


def _check_shape(gguf: GgufFile, name: str, shape: tuple[int, ...]) -> None:
    if name not in gguf.tensors:
        raise damaged(gguf.path, f"no tensor {name}")
    if gguf.tensors[name].shape != shape:
        raise damaged(gguf.path, f"{name} is {gguf.tensors[name].shape}, not {shape}")
