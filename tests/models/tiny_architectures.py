"""Tiny random networks of many architectures, straight from transformers."""

from typing import Any

import torch
import transformers as hf
from transformers import PreTrainedModel

VOCABULARY = 64
WINDOW = 8

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
         "original_max_position_embeddings": 64}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
_TWO_BASES = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2,
          "num_hidden_layers": 4, "query_pre_attn_scalar": 10}  # fmt: skip

# name: (class stem in transformers, what differs)
LLAMA_SHAPED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "yarn-rope": ("Llama", {"rope_parameters": _YARN}),
    "qwen2": ("Qwen2", {}),
    "qwen2-mixed-windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
}
HOOKED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2", {**_MIXED, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", {**_MIXED, "rope_parameters": _TWO_BASES}),
    "phi3": ("Phi3", {}),
    "gpt-oss": (
        "GptOss",
        {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-odd-sizes": ("Llama", {"head_dim": 12, "intermediate_size": 60}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"]}),
    "nemotron": ("Nemotron", {}),
    "stablelm": ("StableLm", {"hidden_size": 64}),
    "mamba": ("Mamba", {"state_size": 4}),
    "phimoe": (
        "Phimoe",
        {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


def config_of(name: str) -> hf.PretrainedConfig:
    stem, more = (LLAMA_SHAPED | HOOKED | REFUSED)[name]
    kind = f"{stem}TextConfig" if stem == "Gemma3" else f"{stem}Config"
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    return getattr(hf, kind)(**(settings | more))


def build(name: str, config: hf.PretrainedConfig | None = None, seed: int = 0) -> PreTrainedModel:
    """Weights are drawn wide, norms and biases too, so that nothing hides behind a one or zero."""
    stem = (LLAMA_SHAPED | HOOKED | REFUSED)[name][0]
    torch.manual_seed(seed)
    network = getattr(hf, f"{stem}ForCausalLM")(config or config_of(name)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            spread = torch.randn_like(parameter)
            wide = parameter.ndim > 1
            parameter.copy_(spread * 0.2 if wide else parameter + 0.3 * spread)
    return network
