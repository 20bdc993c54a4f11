"""GPU specifics: Triton kernels, captured graphs, a KV cache of fixed size."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graft.errors import InputError
from graft.kernels.tree_attention_torch import tree_attention
from graft.machine import has_triton
from graft.models.language_model import Forward, LanguageModel
from graft.models.llama_shape import LlamaShape, LlamaWeights

log = logging.getLogger(__name__)

SHARE = 0.8  # of the free memory that the KV cache may take; the rest is for activations
MIN_ROWS = 1024


@cache  # a missing Triton is logged once
def fastest_attention(device: torch.device) -> Callable[..., Tensor]:
    """Tree attention for layouts on the host."""
    if device.type != "cuda":
        return tree_attention
    if not has_triton():
        log.warning("Triton is not installed: attention over long contexts is slow without it")
        return tree_attention
    from graft.kernels import split_attention_triton

    return split_attention_triton.tree_attention


def graphed_forward(shape: LlamaShape, weights: LlamaWeights) -> Forward:
    """The forward of a Llama-shaped network by CUDA graphs."""
    from graft.models.forward_graphed import GraphedForward
    from graft.models.forward_triton import TritonLayers

    layers = TritonLayers(shape, weights)
    return GraphedForward(layers, exact=layers.storage.kv.dtype != torch.float32)


def captured_forward(network: "Any", *, owned: bool) -> Forward:  # noqa: ANN401
    """The forward of any transformers decoder by CUDA graphs of its own modules."""
    from graft.models.forward_graphed import GraphedForward
    from graft.models.module_layers import ModuleLayers

    return GraphedForward(ModuleLayers(network, owned=owned))


def hold_rows(
    model: LanguageModel,
    device: str,
    *,
    sequences: int,
    max_bytes: int | None,
    kept: int = 0,
    share: float = 1.0,
) -> None:
    """Allocate a GPU's KV cache: whole contexts for so many sequences and `kept` rows of cached
    prefixes, if they fit a `share` of the free memory, or `max_bytes`. A CPU's cache grows as
    needed, up to `max_bytes`."""
    row = model.arena.storage.row_bytes
    if not device.startswith("cuda"):
        if max_bytes is not None:
            model.arena.max_rows = _checked(max_bytes // row, row)
        return
    free = int(share * SHARE * torch.cuda.mem_get_info(device)[0])
    if max_bytes is not None and max_bytes > free:
        raise InputError(
            f"a cache of {max_bytes >> 20} MiB does not fit: {free >> 20} MiB are free"
        )
    wanted = sequences * model.context_length + kept
    rows = min(wanted, free // row) if max_bytes is None else max_bytes // row
    model.arena.hold(_checked(rows, row))


def _checked(rows: int, row_bytes: int) -> int:
    if rows < MIN_ROWS:
        raise InputError(
            f"the KV cache would hold {rows} tokens; give it {MIN_ROWS * row_bytes >> 20} MiB at "
            "least, or free memory of the device"
        )
    return rows
