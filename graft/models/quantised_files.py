"""Checkpoints whose products are quantised, in the layouts that people publish.

FP8 by compressed-tensors or transformers, 4 bits by compressed-tensors, AWQ and GPTQ. A product's
tensors become a `PackedMatrix`. Weights alone are quantised here: a checkpoint that also rounds
activations (w8a8) is computed with activations as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from graft.errors import UnsupportedModelError
from graft.kernels.packed_matrix import BLOCK, PackedMatrix, pack_four_bits

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which four bits of a word an output has
GROUPS = (32, 64, 128)  # inputs of a scale that kernels take, for 4 bits
SYMMETRIC = 8  # the zero of signed codes of 4 bits

Load = Callable[[str], Tensor]  # a tensor of a product by its suffix


class Layout(Protocol):
    """How the tensors of a product are stored."""

    suffixes: tuple[str, ...]  # of the tensors that every product has
    unused: tuple[str, ...]  # of those that it may have, and that change nothing here

    def read(self, load: Load, dtype: torch.dtype) -> PackedMatrix:
        """The matrix for products in a dtype."""


@dataclass(frozen=True, slots=True)
class Fp8Layout:
    """Codes [O, I] and scales: one, one for each output, or one for each block [rows, columns]."""

    scale: str
    block: tuple[int, int] | None
    unused: tuple[str, ...] = ("input_scale", "activation_scale")

    @property
    def suffixes(self) -> tuple[str, ...]:
        """See Layout."""
        return ("weight", self.scale)

    def read(self, load: Load, dtype: torch.dtype) -> PackedMatrix:
        """See Layout."""
        codes, scales = load("weight"), load(self.scale).float()
        outputs, depth = codes.shape
        if codes.dtype != torch.float8_e4m3fn:
            raise UnsupportedModelError(f"its products are {codes.dtype}, not float8_e4m3fn")
        if self.block is None:
            return PackedMatrix(codes, scales.reshape(1, -1).expand(1, outputs), None, dtype)
        rows, columns = self.block
        if depth % columns or columns % BLOCK:
            raise UnsupportedModelError(f"its FP8 blocks of {columns} inputs do not fit {depth}")
        scales = scales.repeat_interleave(rows, 0)[:outputs].T.contiguous()
        return PackedMatrix(codes, scales, None, dtype)


@dataclass(frozen=True, slots=True)
class CompressedLayout:
    """4 bits of compressed-tensors: codes in words along the inputs, scales [O, groups]."""

    symmetric: bool
    unused: tuple[str, ...] = ()

    @property
    def suffixes(self) -> tuple[str, ...]:
        """See Layout."""
        own = ("weight_packed", "weight_scale", "weight_shape")
        return own if self.symmetric else (*own, "weight_zero_point")

    def read(self, load: Load, dtype: torch.dtype) -> PackedMatrix:
        """See Layout."""
        codes, scales = unpack(load("weight_packed"), 1), load("weight_scale").T
        if self.symmetric:
            zeros = torch.full_like(scales, SYMMETRIC)
        else:
            zeros = unpack(load("weight_zero_point"), 0).T
        return _four_bits(codes, scales, zeros, dtype)


@dataclass(frozen=True, slots=True)
class AwqLayout:
    """Codes [I, O] in words along the outputs, in another order."""

    suffixes: tuple[str, ...] = ("qweight", "qzeros", "scales")
    unused: tuple[str, ...] = ()

    def read(self, load: Load, dtype: torch.dtype) -> PackedMatrix:
        """See Layout."""
        codes, zeros = (unpack(load(name), 1, AWQ_ORDER) for name in ("qweight", "qzeros"))
        return _four_bits(codes.T, load("scales"), zeros, dtype)


@dataclass(frozen=True, slots=True)
class GptqLayout:
    """Codes [I, O] in words along the inputs; `less` is what stored zeros lack."""

    group: int
    less: int
    suffixes: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")
    unused: tuple[str, ...] = ()

    def read(self, load: Load, dtype: torch.dtype) -> PackedMatrix:
        """See Layout."""
        codes, order = unpack(load("qweight"), 0), load("g_idx")
        group = self.group if self.group > 0 else len(codes)
        if not torch.equal(order.long().cpu(), torch.arange(len(codes)) // group):
            raise UnsupportedModelError(
                "its inputs are reordered (act-order), which is not supported"
            )
        zeros = unpack(load("qzeros"), 1) + self.less
        return _four_bits(codes.T, load("scales"), zeros, dtype)


def layout_of(config: Any) -> Layout | None:  # noqa: ANN401
    """The layout of a checkpoint's products; None where it is not quantised, or in another way."""
    stored = getattr(config, "quantization_config", None)
    if not stored:
        return None
    settings = stored if isinstance(stored, dict) else stored.to_dict()
    make = {"fp8": _fp8, "compressed-tensors": _compressed, "awq": _awq, "gptq": _gptq}
    found = make.get(str(settings.get("quant_method")))
    return found(settings) if found else None


def unpack(words: Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Codes of 4 bits, uint8, of words of 32 bits: eight along a dimension, the lowest first."""
    shifts = 4 * torch.tensor(order, device=words.device, dtype=torch.int32)
    codes = (words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))) & 15
    return codes.to(torch.uint8).flatten(dim, dim + 1)


def _four_bits(codes: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype) -> PackedMatrix:
    """Of codes [O, I], scales and zeros [G, O]."""
    depth, groups = codes.shape[1], len(scales)
    if depth % groups or not (groups == 1 or depth // groups in GROUPS) or depth % BLOCK:
        raise UnsupportedModelError(f"its {groups} scales for {depth} inputs are not supported")
    return PackedMatrix(
        pack_four_bits(codes.contiguous(), depth // groups),
        scales.to(dtype).contiguous(),
        zeros.to(dtype).contiguous(),
        dtype,
    )


def _fp8(settings: dict[str, Any]) -> Layout | None:
    block = settings.get("weight_block_size")
    return Fp8Layout("weight_scale_inv", tuple(block)) if block else None


def _compressed(settings: dict[str, Any]) -> Layout | None:
    groups = list((settings.get("config_groups") or {}).values())
    weights = groups[0].get("weights") if len(groups) == 1 else None
    if not weights:
        return None
    bits, kind, strategy = (weights.get(name) for name in ("num_bits", "type", "strategy"))
    if (bits, kind) == (8, "float"):
        block = weights.get("block_structure") if strategy == "block" else None
        if strategy in ("tensor", "channel") or block:
            return Fp8Layout("weight_scale", tuple(block) if block else None)
    is_packed = "pack-quantized" in (settings.get("format"), groups[0].get("format"))
    if (bits, kind) == (4, "int") and is_packed and not weights.get("actorder"):
        return CompressedLayout(bool(weights.get("symmetric", True)))
    return None


def _awq(settings: dict[str, Any]) -> Layout | None:
    plain = settings.get("bits", settings.get("w_bit")) == 4  # noqa: PLR2004
    return AwqLayout() if plain and settings.get("version", "gemm").lower() == "gemm" else None


def _gptq(settings: dict[str, Any]) -> Layout | None:
    if settings.get("bits") != 4:  # noqa: PLR2004
        return None
    less = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    return GptqLayout(settings.get("group_size", BLOCK), less)
