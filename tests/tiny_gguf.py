"""Writes a two-layer Llama of a few thousand weights as a GGUF file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np


@dataclass(frozen=True, slots=True)
class Sizes:
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head: int = 8
    inner: int = 64
    layers: int = 2


SIZES = Sizes()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def tokens() -> list[str]:
    return [*SPECIAL, *byte_alphabet(), "th", "the"]


def shapes(sizes: Sizes = SIZES) -> dict[str, tuple[int, ...]]:
    hidden, inner = sizes.hidden, sizes.inner
    queries, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
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
    outer = {"token_embd.weight": (len(tokens()), hidden), "output_norm.weight": (hidden,)}
    return outer | {
        f"blk.{n}.{k}.weight": shape for n in range(sizes.layers) for k, shape in layer.items()
    }


def weights(seed: int = 0, sizes: Sizes = SIZES) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {n: random.normal(size=s).astype(np.float32) * 0.2 for n, s in shapes(sizes).items()}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Llama's q and k as llama.cpp stores them."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write(  # noqa: PLR0913
    file: Path,
    *,
    seed: int = 0,
    architecture: str = "llama",
    pre: str = "smollm",
    skip: str = "",
    quantised: bool = False,
    rope_factors: list[float] | None = None,
    sizes: Sizes = SIZES,
    blocks: Callable[[str, tuple[int, ...]], tuple[np.ndarray, int] | None] | None = None,
) -> Path:
    """`blocks` gives a tensor's stored bytes and GGML's number of its format, or None."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(sizes.layers)
    writer.add_context_length(64)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)  # noqa: FBT003
    writer.add_chat_template(TEMPLATE)
    for name, weight in weights(seed, sizes).items():
        stored = blocks(name, weight.shape) if blocks else None
        if stored is not None:
            kind = gguf.GGMLQuantizationType(stored[1])
            writer.add_tensor(name, stored[0], raw_dtype=kind)
        elif name != skip:
            _add(writer, name, weight, quantised=quantised)
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, *, quantised: bool) -> None:
    heads = {"attn_q": SIZES.heads, "attn_k": SIZES.kv_heads}.get(name.split(".")[-2])
    stored = interleaved(weight, heads) if heads and weight.ndim == 2 else weight
    if quantised and stored.ndim == 2:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(stored, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, stored)
