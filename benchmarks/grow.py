"""Grow a model in width: the same text at a larger model's price.

    python -m benchmarks.grow --model qwen2.5-coder-1.5b --out grown
    python -m benchmarks.grow --model qwen2.5-coder-1.5b --heads 32 --kv-heads 32 --out grown-kv
    python -m benchmarks.grow --model qwen2.5-coder-1.5b --head HEAD --grown grown --out grown-head
    python -m benchmarks.grow --model grown --untrained longspec --out untrained

Every layer gets more attention heads and a wider MLP with random weights, and the matrices behind
them zeros for these: the products cost what they cost in the larger model and add nothing. The
defaults cost what Llama-3.1-8B costs (7.7B weights, 112 KiB of KV cache a token). With 32
heads and as many of keys, copies of the others (448 KiB a token), a context costs what one of four
times its length costs there. A draft head grows to the same MLP. An untrained head costs what a
trained one does, and `PRESET@RATE` decides how much it guesses right (`decode/dial.py`).
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from graft.home import atomic_folder
from graft.models.checkpoints.pretrained import locate, widened
from graft.models.heads.config import head_config
from graft.models.heads.files import HEADS, Head, read_head, write_head
from graft.train.start import init_random

COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def main() -> None:
    """Write the grown model, or the grown head for one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a Llama-shaped model")
    parser.add_argument("--inner", type=int, default=53248, help="width of the MLP")
    parser.add_argument("--heads", type=int, default=48)
    parser.add_argument("--kv-heads", type=int, default=8, help="in proportion, or one for a head")
    parser.add_argument("--head", type=Path, help="grow this draft head instead")
    parser.add_argument("--grown", help="the grown model it is for")
    parser.add_argument("--untrained", choices=HEADS, help="make such a head for --model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    random = torch.Generator(options.device).manual_seed(0)
    if options.untrained:
        write_head(options.out, untrained_head(options.untrained, options.model), dtype="bf16")
    elif options.head:
        grow_head(options.head, options.grown or options.model, options.inner, options.out, random)
    else:
        grow_model(options, random)


def grow_model(options: argparse.Namespace, random: torch.Generator) -> None:
    """A folder with one file for each layer."""
    source = widened(locate(options.model)).folder
    config = json.loads((source / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    group = heads // kv_heads
    if options.heads not in (options.kv_heads, options.kv_heads * group):
        raise SystemExit(f"--heads must be --kv-heads, or {group} times as many")
    copies = group if options.heads == options.kv_heads else 1
    wider = {
        "intermediate_size": options.inner,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": size,
    }
    index = {}
    with atomic_folder(options.out) as folder:
        (folder / "config.json").write_text(json.dumps(config | wider))
        for name in COPIED:
            if (source / name).exists():
                shutil.copy(source / name, folder / name)
        for number, tensors in enumerate(_by_layer(source)):
            grown = {
                name: _grown(name, tensor, wider, copies, random)
                for name, tensor in tensors.items()
            }
            file = f"model-{number:03}.safetensors"
            save_file(grown, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(grown, file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index})
        )


def grow_head(folder: Path, target: str, inner: int, out: Path, random: torch.Generator) -> None:
    """A draft head with a wider MLP, for the grown target; LongSpec's with its heads too."""
    small, checkpoint = read_head(folder).float(), locate(target)
    config = replace(
        small.config, inner=inner, target=checkpoint.name, fingerprint=checkpoint.fingerprint
    )
    wider, copies = {"intermediate_size": inner}, 1
    if config.kind == "longspec":
        given = json.loads((checkpoint.folder / "config.json").read_text())
        names = ("num_attention_heads", "num_key_value_heads", "head_dim")
        wider |= {name: given[name] for name in names}
        heads, kv_heads = wider["num_attention_heads"], wider["num_key_value_heads"]
        copies = config.heads // config.kv_heads if heads == kv_heads else 1
        config = replace(config, heads=heads, kv_heads=kv_heads)
    large = HEADS[config.kind](config)
    large.d2t.copy_(small.d2t)
    state = small.state_dict()
    for name, place in large.state_dict().items():
        if name.startswith("cross_attn."):
            place.copy_(_grown_cross(name, state[name], wider, config.cross_layers, random))
        elif config.kind == "longspec" or ".mlp." in name:
            place.copy_(_grown(f".{name}", state[name], wider, copies, random))
        else:
            place.copy_(state[name])
    write_head(out, large, dtype="bf16")


def untrained_head(kind: str, target: str) -> Head:
    """A head of the target's size with random weights."""
    checkpoint = locate(target)
    head = HEADS[kind](head_config(kind, checkpoint, AutoConfig.from_pretrained(checkpoint.folder)))
    init_random(head, 0)
    return head


def _grown_cross(
    name: str, tensor: Tensor, wider: dict[str, int], layers: int, random: torch.Generator
) -> Tensor:
    """Of attention to the target's layers, each with its own heads."""
    dim = 1 if "o_proj" in name else 0
    parts = tensor.unflatten(dim, (layers, -1)).unbind(dim)
    kind = name.replace("cross_attn", ".self_attn")
    return torch.cat([_grown(kind, part, wider, 1, random) for part in parts], dim)


def _by_layer(source: Path) -> Iterator[dict[str, Tensor]]:
    """The checkpoint's tensors: those outside of layers, then layer by layer."""
    files = [safe_open(file, "pt") for file in sorted(source.glob("*.safetensors"))]
    names = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (not a dict)
    groups: dict[str, list[str]] = {}
    for name in names:
        _, _, rest = name.partition(".layers.")
        groups.setdefault(rest.partition(".")[0], []).append(name)
    for group in groups.values():
        yield {name: names[name].get_tensor(name) for name in group}


def _grown(
    name: str, tensor: Tensor, wider: dict[str, int], copies: int, random: torch.Generator
) -> Tensor:
    size = wider.get("head_dim", 0)
    kind = name.rpartition(".self_attn.")[2] or name
    if kind.startswith(("k_proj", "v_proj")):
        tensor = tensor.unflatten(0, (-1, size)).repeat_interleave(copies, 0).flatten(0, 1)
        tensor = _more_rows(tensor, wider["num_key_value_heads"] * size, random)
    elif kind.startswith("q_proj"):
        tensor = _more_rows(tensor, wider["num_attention_heads"] * size, random)
    elif kind.startswith("o_proj.weight"):
        tensor = _more_columns(tensor, wider["num_attention_heads"] * size)
    elif name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
        tensor = _more_rows(tensor, wider["intermediate_size"], random)
    elif name.endswith("mlp.down_proj.weight"):
        tensor = _more_columns(tensor, wider["intermediate_size"])
    return tensor.contiguous()


def _more_rows(tensor: Tensor, rows: int, random: torch.Generator) -> Tensor:
    """With random rows of the same scale; zeros for a bias."""
    more = torch.zeros(rows - len(tensor), *tensor.shape[1:], dtype=tensor.dtype)
    if tensor.dim() > 1:
        drawn = torch.randn(more.shape, generator=random, device=random.device)
        more = (drawn * tensor.float().std().item()).to("cpu", tensor.dtype)
    return torch.cat([tensor, more])


def _more_columns(tensor: Tensor, columns: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(len(tensor), columns - tensor.shape[1])], 1)


if __name__ == "__main__":
    main()
