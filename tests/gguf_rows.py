"""Random rows in GGUF's formats."""

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from graft.kernels.gguf_blocks import FORMATS


def random_rows(
    name: str, rows: int, depth: int, seed: int = 0, spread: float | None = None
) -> np.ndarray:
    """[rows, bytes]: every code and small scale occurs; `spread`: standard deviation of values."""
    kind, random = FORMATS[name], np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows, depth // kind.size, kind.stored)).astype(np.uint8)
    for place in (kind.scale_at, kind.minimum_at):
        if place >= 0:
            scales = (0.01 * random.standard_normal(raw.shape[:2])).astype(np.float16)
            raw[..., place : place + 2] = scales[..., None].view(np.uint8)
    flat = raw.reshape(rows, -1)
    factor = 1 if spread is None else spread / values(name, flat).std()
    for place in (kind.scale_at, kind.minimum_at):
        if place >= 0:
            scales = raw[..., place : place + 2].copy().view(np.float16) * np.float16(factor)
            raw[..., place : place + 2] = scales.view(np.uint8)
    return flat


def values(name: str, raw: np.ndarray) -> np.ndarray:
    """[rows, depth] float64, by the gguf package."""
    found = dequantize(raw, GGMLQuantizationType(FORMATS[name].number))
    return found.astype(np.float64)
