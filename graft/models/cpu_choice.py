"""Which arithmetic is fastest on this CPU, found by timing the product a step mostly consists of.

bfloat16 halves what is read, but without matrix instructions for it (AMX, SVE) a BLAS may take
a hundred times longer; our panels widen it as they read. Nothing is assumed: all are timed.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from graft.kernels.panels import COMPUTING, LANES, UNROLL
from graft.kernels.products import pack_weight
from graft.models.forward_panels import linear, use_threads
from graft.models.language_model import name_of
from graft.models.llama_shape import MODEL_TYPES
from graft.models.panel_weights import bits

ROWS = (1, 2)  # most steps have few rows, also when drafting
_BYTES = 1 << 26  # read this much a round, so that caches do not hide the memory
_NARROW = (torch.bfloat16, torch.float16)


def choose_dtype(config: PretrainedConfig) -> str:
    """fp32, or the 16 bits the checkpoint has if they are faster; weights are never rounded."""
    stored = _stored_dtype(config)
    if stored not in _NARROW:
        return "fp32"
    faster = min(_both(config, stored)) < 0.95 * min(_both(config, torch.float32))
    return name_of(stored) if faster else "fp32"


def _stored_dtype(config: PretrainedConfig) -> torch.dtype | None:
    stored = config.get_text_config().dtype or config.dtype
    return getattr(torch, stored) if isinstance(stored, str) else stored


def panels_are_faster(config: PretrainedConfig, dtype: torch.dtype) -> bool:
    """Whether our panels beat torch's product for this model and dtype."""
    panels, blas = _both(config, dtype)
    return panels <= blas


def _both(config: PretrainedConfig, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds for one gated projection with few rows: panels, torch."""
    text = config.get_text_config()
    if text.model_type not in MODEL_TYPES:
        return float("inf"), _timed(text.intermediate_size, text.hidden_size, dtype, "torch")
    return tuple(
        _timed(text.intermediate_size, text.hidden_size, dtype, how) for how in ("panels", "torch")
    )


@cache
def _timed(columns: int, depth: int, dtype: torch.dtype, how: str) -> float:
    columns, depth = -(-columns // LANES) * LANES, -(-depth // UNROLL) * UNROLL
    weight = torch.randn(columns, depth, dtype=torch.float32).to(dtype)
    copies = max(1, min(8, _BYTES // (weight.numel() * weight.element_size())))
    total = 0.0
    for rows in ROWS:
        x = torch.randn(rows, depth)
        product = _panel_product(x, weight, copies) if how == "panels" else _blas(x, weight, copies)
        total += _best(product) / copies
    return total


def _panel_product(x: torch.Tensor, weight: torch.Tensor, copies: int) -> Callable[[], None]:
    panels, unscaled = pack_weight(bits(weight)), np.empty(0, np.float32)
    stacked, rows = [panels.copy() for _ in range(copies)], x.numpy()
    result, threads = np.empty((len(x), len(weight)), np.float32), use_threads()

    def product() -> None:
        with COMPUTING:
            for weights in stacked:
                linear(rows, weights, unscaled, result, threads)

    return product


def _blas(x: torch.Tensor, weight: torch.Tensor, copies: int) -> Callable[[], None]:
    stacked, rows = [weight.clone() for _ in range(copies)], x.to(weight.dtype)

    def product() -> None:
        with torch.inference_mode():
            for weights in stacked:
                F.linear(rows, weights)

    return product


def _best(product: Callable[[], None], *, most_seconds: float = 0.15) -> float:
    """Shortest of a few runs within some time; the first may compile or load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing instruction set is what is being found out
        product()
    began, best = time.perf_counter(), float("inf")
    for _ in range(5):
        start = time.perf_counter()
        product()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - began > most_seconds:
            break
    return best
