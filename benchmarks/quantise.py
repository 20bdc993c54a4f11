"""Quantise a checkpoint's products by rounding, for measurements of time.

    python -m benchmarks.quantise --model FOLDER --kind fp8 --out FOLDER-fp8
    python -m benchmarks.quantise --model llama-8b --kind int4 --out llama-8b-int4

A model is a checkpoint's folder, or a name of `benchmarks.decode.shapes`: then weights are random,
and the new folder gets the tokenizer of `--tokenizer`.

Writes what llm-compressor writes: compressed-tensors' FP8 (a scale for each output, activations
rounded for each token where an engine does so) or 4 bits (symmetric, groups of 128). It rounds to
the nearest code without calibration, so quality says nothing about a format.
"""

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.decode.shapes import SIZES, config_of, write_config
from graft.home import atomic_folder
from graft.kernels.packed_matrix import fp8_matrix
from graft.models.checkpoints.folder import MANIFEST
from graft.models.checkpoints.pretrained import DEFAULT_MODEL, locate
from graft.models.llama_files import PRODUCT_WEIGHTS

GROUP = 128
LARGEST = 7.0  # code of 4 bits
WEIGHTS = {
    "fp8": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    "int4": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True,
    },
}  # fmt: skip
ACTIVATIONS = {
    "fp8": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    "int4": None,
}
FORMATS = {"fp8": "float-quantized", "int4": "pack-quantized"}


def main() -> None:
    """Write the quantised checkpoint, file by file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a Llama-shaped model, or a shape")
    parser.add_argument("--tokenizer", default=DEFAULT_MODEL, help="the model whose a shape gets")
    parser.add_argument("--kind", choices=FORMATS, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    is_shape = options.model in SIZES
    source = locate(options.tokenizer if is_shape else options.model).folder
    with atomic_folder(options.out) as folder:
        for file in source.iterdir():
            if file.suffix == ".json" and "index" not in file.name and file.name != MANIFEST:
                shutil.copy(file, folder / file.name)
        if is_shape:
            write_config(options.model, folder)
        index = {}
        parts = random_parts(options) if is_shape else stored_parts(source, options.device)
        for name, tensors in parts:
            made = quantised(tensors, options.kind)
            save_file(made, folder / name, metadata={"format": "pt"})
            index |= dict.fromkeys(made, name)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = settings(options.kind)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        listed = {"metadata": {}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(listed))


def stored_parts(source: Path, device: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The files of a checkpoint."""
    for file in sorted(source.glob("*.safetensors")):
        yield file.name, load_file(file, device)


def random_parts(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Random weights of a shape, a file for each layer, one for the rest."""
    from transformers import AutoModelForCausalLM

    with torch.device(options.device):
        network = AutoModelForCausalLM.from_config(config_of(options.model), dtype=torch.bfloat16)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in network.state_dict().items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        layers.setdefault(layer[1] if layer else "rest", {})[name] = tensor
    for name, tensors in layers.items():
        yield f"model-{name}.safetensors", tensors


def settings(kind: str) -> dict[str, Any]:
    """compressed-tensors' description."""
    group = {
        "targets": ["Linear"],
        "weights": WEIGHTS[kind],
        "input_activations": ACTIVATIONS[kind],
    }
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": FORMATS[kind],
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def quantised(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The tensors of a file, products quantised."""
    made = {}
    for name, tensor in tensors.items():
        if name.endswith(PRODUCT_WEIGHTS):
            parts = {"fp8": _fp8, "int4": _four_bits}[kind](tensor)
            prefix = name.removesuffix("weight")
            made |= {prefix + suffix: part.cpu() for suffix, part in parts.items()}
        else:
            made[name] = tensor.cpu()
    return made


def _fp8(weight: Tensor) -> dict[str, Tensor]:
    rounded = fp8_matrix(weight)
    return {"weight": rounded.codes, "weight_scale": rounded.scales.T.to(weight.dtype)}


def _four_bits(weight: Tensor) -> dict[str, Tensor]:
    parts = weight.float().unflatten(1, (-1, GROUP))
    scale = (parts.abs().amax(2).clamp_min(1e-12) / LARGEST).to(weight.dtype)
    codes = (parts / scale.float()[..., None]).round().clamp(-8, 7).flatten(1).int() + 8
    words = torch.zeros(len(codes), codes.shape[1] // 8, dtype=torch.int32, device=codes.device)
    for place in range(8):
        words |= codes[:, place::8] << 4 * place
    return {
        "weight_packed": words,
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }


if __name__ == "__main__":
    main()
