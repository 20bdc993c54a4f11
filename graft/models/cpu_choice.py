"""Which arithmetic is fastest on this CPU: the product that dominates a step is timed.

bfloat16 halves the bytes of a step, but without matrix instructions for it (AMX, SVE) a BLAS may
take a hundred times longer; our panels widen it as they load it. So all are timed.
"""

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from graft.errors import CheckpointError
from graft.home import atomic_file
from graft.kernels.panels import COMPUTING, LANES, UNROLL
from graft.kernels.products import pack_weight
from graft.models.forward_panels import linear, use_threads
from graft.models.language_model import name_of
from graft.models.panel_weights import bits
from graft.models.step_costs import costs_path

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ROWS = (1, 2)  # most steps have few rows, also when drafting
_BYTES = 1 << 26  # of weights in a run, so that the processor's caches do not hide the memory
_NARROW = (torch.bfloat16, torch.float16)


def choose_dtype(config: "PretrainedConfig") -> str:
    """fp32, or the 16 bits the checkpoint has if they are faster; weights are never rounded."""
    stored = _stored_dtype(config)
    if stored not in _NARROW:
        return "fp32"
    faster = min(_both(config, stored)) < 0.95 * min(_both(config, torch.float32))
    return name_of(stored) if faster else "fp32"


def _stored_dtype(config: "PretrainedConfig") -> torch.dtype | None:
    stored = config.get_text_config().dtype or config.dtype
    return getattr(torch, stored) if isinstance(stored, str) else stored


def panels_are_faster(config: "PretrainedConfig", dtype: torch.dtype) -> bool:
    """Whether our panels beat torch's product for this model and dtype."""
    panels, blas = _both(config, dtype)
    return panels <= blas


def _both(config: "PretrainedConfig", dtype: torch.dtype) -> tuple[float, float]:
    """Seconds for one gated projection with few rows: panels, torch."""
    text = config.get_text_config()
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return _known(inner, text.hidden_size, dtype)


@cache
def _known(columns: int, depth: int, dtype: torch.dtype) -> tuple[float, float]:
    """Measured once on a machine and kept on disk, as step costs are."""
    path = costs_path(["product", f"{columns} x {depth}", "cpu", name_of(dtype)])
    try:
        panels, blas = json.loads(path.read_text())
        return float(panels), float(blas)
    except (OSError, ValueError, TypeError):
        pass  # not measured yet, or damaged
    seconds = _measured(columns, depth, dtype)
    with contextlib.suppress(CheckpointError), atomic_file(path) as temporary:
        temporary.write_text(json.dumps(seconds))
    return seconds


def _measured(columns: int, depth: int, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of both, measured in turns: other work on the machine slows both alike."""
    columns, depth = -(-columns // LANES) * LANES, -(-depth // UNROLL) * UNROLL
    weight = torch.randn(columns, depth, dtype=torch.float32).to(dtype)
    copies = max(1, min(8, _BYTES // (weight.numel() * weight.element_size())))
    totals = [0.0, 0.0]
    for rows in ROWS:
        x = torch.randn(rows, depth)
        products = (_panel_product(x, weight, copies), _blas(x, weight, copies))
        for i, seconds in enumerate(_shortest(products)):
            totals[i] += seconds / copies
    return totals[0], totals[1]


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


def _shortest(products: Sequence[Callable[[], None]], max_seconds: float = 0.3) -> list[float]:
    """Shortest of a few runs of each within some time; the first may compile or load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing instruction set is what is being measured
        for product in products:
            product()
    began, best = time.perf_counter(), [float("inf")] * len(products)
    for _ in range(5):
        for i, product in enumerate(products):
            start = time.perf_counter()
            product()
            best[i] = min(best[i], time.perf_counter() - start)
        if time.perf_counter() - began > max_seconds:
            break
    return best
