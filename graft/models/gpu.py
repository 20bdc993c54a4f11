"""What is different on a GPU: kernels in Triton, captured graphs, a cache whose size is fixed."""

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from graft.errors import InputError
from graft.kernels.tree_attention_torch import tree_attention
from graft.machine import has_triton
from graft.models.language_model import Forward, LanguageModel
from graft.models.llama_shape import LlamaShape, LlamaWeights

log = logging.getLogger(__name__)

SHARE = 0.8  # of the free memory that the cache may take; the rest is for a step's own numbers
LEAST_ROWS = 1024


@cache  # what is missing is said once
def fastest_attention(device: torch.device) -> Callable[..., Tensor]:
    """Tree attention for layouts on the host."""
    if device.type != "cuda":
        return tree_attention
    if not has_triton():
        log.warning("Triton is not installed: attention over long contexts is slow without it")
        return tree_attention
    from graft.kernels import tree_attention_triton

    return tree_attention_triton.tree_attention


def graphed_forward(shape: LlamaShape, weights: LlamaWeights) -> Forward:
    """The forward of a Llama-shaped network by CUDA graphs."""
    from graft.models.forward_graphed import GraphedForward
    from graft.models.forward_triton import TritonLayers

    return GraphedForward(TritonLayers(shape, weights))


def hold_rows(
    model: LanguageModel,
    device: str,
    *,
    sequences: int,
    most_bytes: int | None,
    kept: int = 0,
    share: float = 1.0,
) -> None:
    """Take the memory of the cache once and for all: whole contexts for so many sequences and
    `kept` rows of texts that were read before, if a `share` of what is free has room for them.
    `most_bytes` sets it; on the CPU, where rows come as needed, that bounds it."""
    row = model.arena.storage.row_bytes
    if not device.startswith("cuda"):
        if most_bytes is not None:
            model.arena.most_rows = _enough(most_bytes // row, row)
        return
    free = int(share * SHARE * torch.cuda.mem_get_info(device)[0])
    if most_bytes is not None and most_bytes > free:
        raise InputError(
            f"a cache of {most_bytes >> 20} MiB does not fit: {free >> 20} MiB can be had"
        )
    wanted = sequences * model.context_length + kept
    rows = min(wanted, free // row) if most_bytes is None else most_bytes // row
    model.arena.hold(_enough(rows, row))


def _enough(rows: int, row_bytes: int) -> int:
    if rows < LEAST_ROWS:
        raise InputError(
            f"the cache would hold {rows} tokens; give it {LEAST_ROWS * row_bytes >> 20} MiB at "
            "least, or free memory of the device"
        )
    return rows
