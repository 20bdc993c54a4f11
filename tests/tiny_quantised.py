"""Tiny quantised checkpoints in the layouts that people publish."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_network, tiny_tokenizer
from torch import Tensor

AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]  # the output in each four bits of a word
Quantised = tuple[dict[str, Tensor], Tensor]  # stored tensors by suffix, and the dense weight


def words(codes: Tensor, dim: int) -> Tensor:
    """int32 words of eight codes each along a dimension, the first in the lowest bits."""
    parts = codes.long().unflatten(dim, (-1, 8)).unbind(dim + 1)
    packed = sum(part << 4 * place for place, part in enumerate(parts))
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def grouped(weight: Tensor, group: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [O, I], scales [O, G] in fp16 and zeros [O, G] of a weight."""
    parts = weight.unflatten(1, (-1, group))
    low, high = parts.amin(2), parts.amax(2)
    if symmetric:
        scales = (torch.maximum(-low, high) / 7).half()
        zeros = torch.full_like(scales, 8)
    else:
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15)
    codes = (parts / scales.float()[..., None] + zeros.float()[..., None]).round().clamp(0, 15)
    return codes.flatten(1).to(torch.uint8), scales, zeros


def dense(codes: Tensor, scales: Tensor, zeros: Tensor, group: int) -> Tensor:
    wide = [x.float().repeat_interleave(group, 1) for x in (scales, zeros)]
    return (codes.float() - wide[1]) * wide[0]


def fp8_channels(weight: Tensor) -> Quantised:
    scales = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    stored = {"weight": codes, "weight_scale": scales, "input_scale": torch.ones(1)}
    return stored, codes.float() * scales


def fp8_blocks(weight: Tensor) -> Quantised:
    blocks = weight.unflatten(1, (-1, 128)).unflatten(0, (-1, 64))
    scales = blocks.abs().amax((1, 3)) / 448  # [O / 64, I / 128]
    wide = scales.repeat_interleave(64, 0).repeat_interleave(128, 1)
    codes = (weight / wide).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, codes.float() * wide


def compressed(weight: Tensor, *, symmetric: bool = True) -> Quantised:
    codes, scales, zeros = grouped(weight, 128, symmetric=symmetric)
    stored = {
        "weight_packed": words(codes, 1),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        stored["weight_zero_point"] = words(zeros, 0)
    return stored, dense(codes, scales, zeros, 128)


def awq(weight: Tensor) -> Quantised:
    codes, scales, zeros = grouped(weight, 64, symmetric=False)

    def pack(each: Tensor) -> Tensor:
        return words(each.T.unflatten(1, (-1, 8))[..., AWQ_COLUMNS].flatten(1), 1)

    stored = {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales.T.contiguous()}
    return stored, dense(codes, scales, zeros, 64)


def gptq(weight: Tensor) -> Quantised:
    codes, scales, zeros = grouped(weight, 128, symmetric=True)
    stored = {
        "qweight": words(codes.T, 0),
        "qzeros": words(zeros.T - 1, 1),
        "scales": scales.T.contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // 128).int(),
    }
    return stored, dense(codes, scales, zeros, 128)


def _compressed_config(format_name: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


ASYMMETRIC = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
LAYOUTS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Quantised]]] = {
    "fp8 channels": (
        _compressed_config("float-quantized", num_bits=8, type="float", strategy="channel"),
        fp8_channels,
    ),
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [64, 128]}, fp8_blocks),
    "compressed": (_compressed_config("pack-quantized", symmetric=True, **ASYMMETRIC), compressed),
    "compressed, zeros": (
        _compressed_config("pack-quantized", symmetric=False, **ASYMMETRIC),
        lambda weight: compressed(weight, symmetric=False),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, gptq),
}


def save_quantised(folder: Path, layout: str) -> Path:
    """A tiny model in a layout, and in `folder`/dense what it stands for; the first folder."""
    settings, quantise = LAYOUTS[layout]
    quantised, plain = folder / "quantised", folder / "dense"
    tiny_network(hidden=128, heads=8, kv_heads=4).save_pretrained(plain)
    for each in (quantised, plain):
        tiny_tokenizer().save_pretrained(each)
    stored, widened = {}, {}
    for name, value in load_file(plain / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            parts, widened[name] = quantise(value)
            prefix = name.removesuffix("weight")
            stored |= {prefix + suffix: each.contiguous() for suffix, each in parts.items()}
        else:
            stored[name] = widened[name] = value
    save_file(stored, quantised / "model.safetensors", metadata={"format": "pt"})
    save_file(widened, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config |= {"quantization_config": settings}
    (quantised / "config.json").write_text(json.dumps(config))
    return quantised
