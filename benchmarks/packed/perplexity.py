"""`python -m benchmarks.packed.perplexity FILE TEXT`: packed weights beside dequantised ones.

The dequantised model has the file's exact values in float32, without the rounding of inputs.
With --kv-cache-dtype: such a KV cache beside one in fp32, of any model.
"""

import argparse
import math
import sys
from pathlib import Path

import torch

from benchmarks.likelihood import log_probabilities
from graft.models.checkpoints.gguf import open_packed
from graft.models.checkpoints.pretrained import locate
from graft.models.forward_panels import PanelForward
from graft.models.gguf_weights import GgufTensors
from graft.models.language_model import LanguageModel
from graft.models.llama_files import read_files
from graft.models.load import load_model, read_config
from graft.models.panel_weights import pack_weights


def dequantised(name: str, like: LanguageModel) -> LanguageModel:
    """The model of the file's values in float32."""
    checkpoint = locate(name)
    assert checkpoint.gguf
    tensors = GgufTensors(open_packed(checkpoint.folder, checkpoint.gguf))
    config = read_config(checkpoint)
    shape, weights = read_files(tensors, config, torch.float32, torch.device("cpu"))
    forward = PanelForward(shape, pack_weights(weights))
    return LanguageModel(forward, vocabulary=like.vocabulary, context_length=like.context_length)


def losses(model: LanguageModel, tokens: list[int]) -> torch.Tensor:
    """-log p of every token but the first."""
    extent = model.open(len(tokens))
    try:
        return -log_probabilities(model, extent, tokens)
    finally:
        model.close(extent)


def main() -> None:
    """Print both perplexities, and the mean difference with its standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kv-cache-dtype", default="auto")
    chosen = parser.parse_args()
    changed = load_model(chosen.file, device="cpu", kv_cache_dtype=chosen.kv_cache_dtype)
    text = chosen.text.read_bytes()[: 8 * chosen.tokens].decode(errors="ignore")
    tokens = changed.tokenizer.encode(text)[: chosen.tokens]
    parts = [tokens[i : i + chosen.context] for i in range(0, len(tokens), chosen.context)]
    if chosen.kv_cache_dtype == "auto":
        names = ("packed", "dequantised")
        exact = dequantised(chosen.file, changed.model)
    else:
        names = (f"KV cache in {chosen.kv_cache_dtype}", "in fp32")
        exact = load_model(chosen.file, device="cpu").model
    both = [[losses(model, part) for part in parts] for model in (changed.model, exact)]
    found, expected = (torch.cat(each) for each in both)
    difference = found - expected
    error = float(difference.std()) / math.sqrt(len(difference))
    sys.stdout.write(
        f"{Path(chosen.file).name}: {len(tokens)} tokens, perplexity {found.mean().exp():.4f} "
        f"{names[0]}, {expected.mean().exp():.4f} {names[1]}; the loss of a token differs by "
        f"{difference.mean():+.5f} +- {error:.5f}\n"
    )


if __name__ == "__main__":
    main()
