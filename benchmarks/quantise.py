"""Quantise a checkpoint's products by rounding, for measurements of time.

    python -m benchmarks.quantise --model FOLDER --kind fp8 --out FOLDER-fp8
    python -m benchmarks.quantise --model FOLDER --kind int4 --out FOLDER-int4

Writes what llm-compressor writes: compressed-tensors' FP8 (a scale for each output, activations
rounded for each token where an engine does so) or 4 bits (symmetric, groups of 128). It rounds to
the nearest code without calibration, so quality says nothing about a format.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from graft.home import atomic_folder
from graft.models.checkpoints.pretrained import locate
from graft.models.llama_files import PRODUCT_WEIGHTS

GROUP = 128
LARGEST = {"fp8": 448.0, "int4": 7.0}
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
    parser.add_argument("--model", required=True, help="a Llama-shaped model in safetensors")
    parser.add_argument("--kind", choices=FORMATS, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    source = locate(options.model).folder
    with atomic_folder(options.out) as folder:
        index = {}
        for file in sorted(source.iterdir()):
            if file.suffix == ".safetensors":
                tensors = quantised(load_file(file, options.device), options.kind)
                save_file(tensors, folder / file.name, metadata={"format": "pt"})
                index |= dict.fromkeys(tensors, file.name)
            elif file.suffix == ".json" and "index" not in file.name:
                shutil.copy(file, folder / file.name)
        config = json.loads((source / "config.json").read_text())
        config["quantization_config"] = settings(options.kind)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        listed = {"metadata": {}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(listed))


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
    scale = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / LARGEST["fp8"]
    codes = (weight.float() / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale.to(weight.dtype)}


def _four_bits(weight: Tensor) -> dict[str, Tensor]:
    parts = weight.float().unflatten(1, (-1, GROUP))
    scale = (parts.abs().amax(2).clamp_min(1e-12) / LARGEST["int4"]).to(weight.dtype)
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
