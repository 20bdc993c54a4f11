"""What bitwise independence costs on a GPU: a step in invariant mode against the usual one.

    python -m benchmarks.kernels.invariant --out invariant.jsonl

The network has the shape of Qwen2.5-0.5B and random weights: nothing is downloaded. Each line of
the file is one cell: the shortest and the median step in milliseconds of both, and whether the
logits of a tree have the same bits as those of its paths decoded token by token, and as those of
the tree beside another sequence.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.rows import rows_file
from graft.kernels.tree_attention_invariant import tree_attention
from graft.models.arena import Extent
from graft.models.forward import LeanForward
from graft.models.invariant import SLABS, InvariantForward, check_invariant
from graft.models.language_model import LanguageModel
from graft.models.llama_shape import read_llama
from graft.tree.draft_tree import DraftTree, chain, from_paths, root_only

CONTEXTS, NODES = (300, 4000), (1, 4, 16, 64)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
QWEN = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TINY = QWEN | {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
               "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip


def main() -> None:
    """Print and write a line per cell."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--dtype", choices=DTYPES, default="bf16")
    options.add_argument(
        "--slab", type=int, nargs="*", help="nodes of a slab; several are compared"
    )
    options.add_argument("--group", type=int, help="blocks of 256 keys computed at once")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--tiny", action="store_true", help="a small network, to try the script")
    chosen = options.parse_args()
    device, shape = torch.device(chosen.device), TINY if chosen.tiny else QWEN
    network = build(shape, device, DTYPES[chosen.dtype])
    usual = model_of(LeanForward(*read_llama(network)), shape)
    with rows_file("invariant", chosen) as file:
        for row in measured(network, chosen, shape, usual):
            print(row, flush=True)
            file.row(row)


def measured(
    network: Qwen2ForCausalLM,
    chosen: argparse.Namespace,
    shape: dict[str, Any],
    usual: LanguageModel,
) -> Iterator[dict[str, Any]]:
    """A row per slab, context and tree."""
    device = torch.device(chosen.device)
    for slab in chosen.slab or [SLABS[device.type]]:
        lean = LeanForward(*read_llama(network), tree_attention)
        forward = InvariantForward(lean, device=device, slab=slab, group=chosen.group)
        check_invariant(forward, vocabulary=shape["vocab_size"], name="the network")
        pair = {"usual": usual, "invariant": model_of(forward, shape)}
        for context in CONTEXTS:
            for line in cells(pair, context, chosen.rounds):
                yield {"slab": slab, "group": forward.group, "context": context, **line}


def build(shape: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Qwen2ForCausalLM:
    """Random weights, made on the device."""
    torch.manual_seed(0)
    config = Qwen2Config(**shape, attn_implementation="eager")
    with device:
        network = Qwen2ForCausalLM(config)
    return network.to(dtype).eval()


def model_of(forward: Any, shape: dict[str, Any]) -> LanguageModel:  # noqa: ANN401
    """A model with a cache of its own."""
    longest = shape["max_position_embeddings"]
    return LanguageModel(forward, vocabulary=shape["vocab_size"], context_length=longest)


def device_name(device: torch.device) -> str:
    """What it ran on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()


def cells(pair: dict[str, LanguageModel], context: int, rounds: int) -> list[dict[str, Any]]:
    """A line for every number of nodes on top of `context` tokens."""
    text = np.random.default_rng(context).integers(3, 500, context).tolist()
    extents = {name: (model.open(context + 128), model.open(256)) for name, model in pair.items()}
    for name, model in pair.items():
        model.prefill(extents[name][0], text)
        model.prefill(extents[name][1], text[:100])
    lines = []
    for nodes in NODES:
        tree = random_tree(nodes)
        times = timed({n: (pair[n], extents[n][0]) for n in pair}, tree, rounds)
        line: dict[str, Any] = {"nodes": nodes}
        for name, model in pair.items():
            line[f"{name}_ms"] = round(1e3 * min(times[name]), 3)
            line[f"{name}_median_ms"] = round(1e3 * statistics.median(times[name]), 3)
            line[f"{name}_difference"] = difference(model, extents[name], tree)
        line["cost"] = round(line["invariant_median_ms"] / line["usual_median_ms"], 3)
        line["bitwise"] = line["invariant_difference"] == 0
        lines.append(line)
    for name, model in pair.items():
        for extent in extents[name]:
            model.close(extent)
    return lines


def random_tree(nodes: int) -> DraftTree:
    """A trunk of half the nodes with short branches."""
    rng = np.random.default_rng(nodes)
    trunk = rng.integers(3, 400, max(nodes // 2 - 1, 0)).tolist()
    paths = [trunk] if trunk else []
    for i in range(nodes - 1 - len(trunk)):
        paths.append([*trunk[: i % (len(trunk) + 1)], 400 + i])
    return from_paths(7, paths) if paths else root_only(7)


def timed(
    subjects: dict[str, tuple[LanguageModel, Extent]], tree: DraftTree, rounds: int
) -> dict[str, list[float]]:
    """Seconds of steps, the subjects in turns; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds + 1):
        for name, (model, extent) in subjects.items():
            start = time.perf_counter()
            model.score([extent], [tree])[0][0, 0].item()
            times[name].append(time.perf_counter() - start)
    return {name: found[1:] for name, found in times.items()}


def difference(model: LanguageModel, extents: tuple[Extent, Extent], tree: DraftTree) -> float:
    """Largest difference of a tree's logits from its deepest path's, token by token, and from
    those of the tree beside another sequence."""
    extent, other = extents
    logits = model.score([extent], [tree])[0]
    beside = model.score([other, extent], [chain([9, 8, 7, 6, 5]), tree])[1]
    worst = float((logits - beside).abs().max())
    committed = extent.length
    for node in np.flatnonzero(tree.ancestors()[-1]):
        alone = model.prefill_chunk(extent, [int(tree.tokens[node])])
        worst = max(worst, float((logits[node] - alone).abs().max()))
    model.arena.truncate(extent, committed)
    return worst


if __name__ == "__main__":
    main()
