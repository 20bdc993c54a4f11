"""Tiny random networks of many architectures, straight from transformers."""

from typing import Any

import tiny
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
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_group": 1,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "topk_group": 1,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "num_hidden_layers": 3}  # fmt: skip
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
           "v_head_dim": 6, "num_key_value_heads": 4, "head_dim": 8}  # fmt: skip
_DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_hidden_layers": 3,
          "layer_types": ["linear_attention", "full_attention", "linear_attention"]}  # fmt: skip
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8,
          "mamba_expand": 2, "mamba_d_conv": 4, "mamba_chunk_size": 16}  # fmt: skip
_SOME_EXPERTS = {key: _EXPERTS[key] for key in ("num_experts", "num_experts_per_tok",
                 "moe_intermediate_size")} | {"shared_expert_intermediate_size": 24}  # fmt: skip

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
MORE_HOOKED: dict[str, tuple[str, dict[str, Any]]] = {
    **{stem.lower(): (stem, {}) for stem in (
        "Gemma", "Phi", "Granite", "Olmo", "Olmo2", "Olmo3", "Cohere", "Cohere2", "Starcoder2",
        "SmolLM3", "Glm", "Glm4", "Ernie4_5", "Exaone4", "HunYuanDenseV1", "SeedOss", "Apertus",
        "Arcee", "GPTNeoX", "Ministral", "VaultGemma",
    )},
    **{stem.lower(): (stem, _EXPERTS) for stem in (
        "Mixtral", "Qwen2Moe", "Qwen3Moe", "GraniteMoe", "Dots1", "Glm4Moe",
    )},
    "olmoe": ("Olmoe", {**_EXPERTS, "head_dim": 8}),
    "deepseek-v2": ("DeepseekV2", _EXPERTS | _LATENT),
    "deepseek-v3": ("DeepseekV3", _EXPERTS | _LATENT),
}  # fmt: skip
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"]}),
    "lfm2-moe": (
        "Lfm2Moe",
        {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1, **_SOME_EXPERTS},
    ),
    "qwen3-next": ("Qwen3Next", _DELTA | _SOME_EXPERTS),
    "qwen3.5": ("Qwen3_5", _DELTA),
    "qwen3.5-moe": ("Qwen3_5Moe", _DELTA | _SOME_EXPERTS),
    "olmo-hybrid": ("OlmoHybrid", _DELTA),
    "kimi-linear": (
        "KimiLinear",
        {**_LATENT, "q_lora_rank": None, "linear_num_heads": 4, "linear_head_dim": 8,
         "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "mamba2": (
        "Mamba2",
        {"num_heads": 4, "expand": 2, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    ),
    "mamba": ("Mamba", {"state_size": 4}),
    "bamba": ("Bamba", {**_MAMBA, "attn_layer_indices": [1]}),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {**_MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 48,
         "num_local_experts": 0},
    ),
    "nemotron-h": (
        "NemotronH",
        {"hybrid_override_pattern": "M*M-", "num_hidden_layers": 4, "mamba_num_heads": 4,
         "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 16},
    ),
    "falcon-h1": ("FalconH1", {**_MAMBA, "mamba_d_ssm": 64}),
    "jamba": ("Jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron": ("Nemotron", {}),
    "stablelm": ("StableLm", {"hidden_size": 64}),
    "phimoe": (
        "Phimoe",
        {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}
ALL = LLAMA_SHAPED | HOOKED | MORE_HOOKED | RECURRENT | REFUSED


def config_of(name: str, **given: Any) -> hf.PretrainedConfig:
    stem, more = ALL[name]
    kind = f"{stem}TextConfig" if hasattr(hf, f"{stem}TextConfig") else f"{stem}Config"
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
    return getattr(hf, kind)(**(settings | more | given))


def build(name: str, config: hf.PretrainedConfig | None = None, seed: int = 0) -> PreTrainedModel:
    """Weights are drawn wide, norms and biases too, so that nothing hides behind a one or zero."""
    stem = ALL[name][0]
    torch.manual_seed(seed)
    network = getattr(hf, f"{stem}ForCausalLM")(config or config_of(name)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            spread = torch.randn_like(parameter)
            wide = parameter.ndim > 1
            parameter.copy_(spread * 0.2 if wide else parameter + 0.3 * spread)
    return network


def repeating(name: str) -> PreTrainedModel:
    """A network of `tiny`'s vocabulary whose output repeats now and then, so that some drafts are
    accepted; see `tiny.py`."""
    network = build(name, config_of(name, vocab_size=tiny.VOCABULARY))
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.mul_(tiny.NARROW / 0.2)
        for layer in (network.get_input_embeddings(), network.get_output_embeddings()):
            layer.weight.copy_(torch.randn_like(layer.weight) * tiny.SHARPNESS)
    return network
