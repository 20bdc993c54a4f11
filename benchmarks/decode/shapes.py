"""Models that are shapes alone: a config of real sizes, and random weights made on the device.

Step times depend on sizes, not on what is in the weights, and no disk need hold them.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graft import Engine
    from graft.models.load import LoadedModel

# Random routers give several experts nearly the same logit, so rounding changes which are chosen.
# With small outputs of experts the check at load, and the text, do not depend on that.
EXPERT_OUTPUTS = ("experts.down_proj", "experts.down_proj_bias")
SMALL = 0.05

SIZES: dict[str, tuple[str, dict[str, Any]]] = {  # transformers' names
    "llama-8b": ("Llama", {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    }),
    "qwen2.5-1.5b": ("Qwen2", {
        "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    }),
    "grown-7.7b": ("Qwen2", {  # as `benchmarks.grow` makes it of the one before
        "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 53248,
        "num_hidden_layers": 28, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "max_position_embeddings": 131072, "tie_word_embeddings": True,
    }),
    "gemma-3-4b": ("Gemma3", {
        "vocab_size": 262208, "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "sliding_window": 1024, "max_position_embeddings": 131072,
    }),
    "qwen3-30b-a3b": ("Qwen3Moe", {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960,
    }),
    "gpt-oss-20b": ("GptOss", {
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    }),
    "qwen3-next-3b": ("Qwen3Next", {  # a small one: few experts, as many layers as a 3B has
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 0,
        "mlp_only_layers": list(range(36)), "max_position_embeddings": 262144,
    }),
}  # fmt: skip


def config_of(name: str) -> Any:  # noqa: ANN401  (transformers')
    """A shape's config."""
    import transformers

    stem, sizes = SIZES[name]
    text = getattr(transformers, f"{stem}TextConfig", None)
    return (text or getattr(transformers, f"{stem}Config"))(**sizes)


def write_config(name: str, folder: Path) -> None:
    """A checkpoint's folder without weights, as engines with dummy weights want it."""
    config = config_of(name)
    about = {"architectures": [f"{SIZES[name][0]}ForCausalLM"], "dtype": "bfloat16"}
    text = json.dumps(config.to_dict() | about, default=str)
    (folder / "config.json").write_text(text, encoding="utf-8")


def random_engine(name: str, context: int, batch: int, kv_bytes: int) -> "Engine":
    """Graft's engine for plain decoding around random weights in bf16."""
    from graft import Engine
    from graft.draft.drafter import NoDraft
    from graft.models.step_costs import REFERENCE, StepCosts
    from graft.verify.walk import walk

    loaded = random_model(name, context, batch, kv_bytes)
    costs = StepCosts.read(REFERENCE)  # plain decoding needs none of them
    drafters = {"plain": NoDraft()}
    return Engine(loaded, drafters, walk, costs, default_draft="plain", max_batch=batch)


def random_model(name: str, context: int, batch: int, kv_bytes: int | None = None) -> "LoadedModel":
    """Random weights in bf16 as a loaded model, with a KV cache of whole contexts by default."""
    import torch
    from transformers import AutoModelForCausalLM

    from graft.models.checkpoints.pretrained import Checkpoint
    from graft.models.forward_choice import build_forward
    from graft.models.gpu import hold_rows
    from graft.models.language_model import LanguageModel, prefill_chunk_size
    from graft.models.load import LoadedModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = config_of(name)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for part, weight in network.named_parameters():
            if part.endswith(EXPERT_OUTPUTS):
                weight *= SMALL
    forward, kind = build_forward(network, name=name, dtype=torch.bfloat16)
    model = LanguageModel(
        forward,
        vocabulary=config.vocab_size,
        context_length=context,
        chunk=prefill_chunk_size(torch.device(device)),
    )
    hold_rows(model, device, sequences=batch, max_bytes=kv_bytes)
    checkpoint = Checkpoint(name, Path(name), name)
    return LoadedModel(model, None, checkpoint, frozenset(), "bf16", device, kind)
