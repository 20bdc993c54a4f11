"""Rotary positions: inverse frequencies as transformers computes them, and longer contexts by YaRN.

`rope_of` follows transformers' `modeling_rope_utils.py` operation by operation, so the frequencies
have the same bits. Types whose frequencies depend on the length of the text are not supported here.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graft.errors import InputError, UnsupportedModelError

PLAIN, YARN = "default", "yarn"
STATIC_ROPE = {PLAIN, "linear", "llama3", YARN}  # the frequencies of others change with the length


@dataclass(frozen=True, slots=True)
class Rope:
    """Inverse frequencies [D / 2] float32; `scaling` multiplies cosine and sine."""

    frequencies: Tensor
    scaling: float = 1.0

    @torch.inference_mode()
    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cosine, sine [..., D / 2] float32 at positions [...]."""
        return rotary_tables(positions, self.frequencies, self.scaling)

    def to(self, device: torch.device) -> "Rope":
        """The same on a device."""
        return Rope(self.frequencies.to(device), self.scaling)


def rotary_tables(positions: Tensor, frequencies: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """See Rope.tables; traced by torch.compile."""
    angles = positions[..., None].float() * frequencies
    return angles.cos() * scaling, angles.sin() * scaling


def rope_of(parameters: dict[str, Any], head_size: int, positions: int) -> Rope:
    """The rope of a config's `rope_parameters`; `positions` is its max_position_embeddings."""
    kind, base = parameters["rope_type"], parameters["rope_theta"]
    if kind not in STATIC_ROPE:
        raise UnsupportedModelError(f"rotary positions of type {kind!r} change with the length")
    size = head_size
    if kind != PLAIN:
        size = int(head_size * parameters.get("partial_rotary_factor", 1.0))
    steps = torch.arange(0, size, 2, dtype=torch.float, device="cpu")  # whatever the default is
    turned = base ** (steps / size)  # [D / 2]
    if kind == YARN:
        return _yarn(parameters, turned, positions)
    frequencies = 1.0 / turned
    if kind == "linear":
        frequencies = frequencies / parameters["factor"]
    if kind == "llama3":
        frequencies = _llama3(parameters, frequencies)
    return Rope(frequencies)


def _llama3(parameters: dict[str, Any], frequencies: Tensor) -> Tensor:
    """Long wavelengths are divided by the factor, medium ones by a part of it."""
    factor, trained = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    lengths = 2 * math.pi / frequencies
    scaled = torch.where(lengths > trained / low, frequencies / factor, frequencies)
    share = (trained / lengths - low) / (high - low)
    smooth = (1 - share) * scaled / factor + share * scaled
    medium = ~(lengths < trained / high) * ~(lengths > trained / low)
    return torch.where(medium, smooth, scaled)


def _yarn(parameters: dict[str, Any], turned: Tensor, positions: int) -> Rope:
    """YaRN (Peng et al. 2023): slow rotations are interpolated, fast ones are left alone."""
    size, base = 2 * len(turned), parameters["rope_theta"]
    trained = parameters["original_max_position_embeddings"]
    factor = parameters["factor"]
    if factor is None:
        factor = positions / trained

    def dimension(rotations: float) -> float:
        return (size * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    kept = 1 - ramp
    frequencies = 1.0 / (factor * turned) * (1 - kept) + 1.0 / turned * kept
    return Rope(frequencies, _yarn_scaling(parameters, factor))


def _yarn_scaling(parameters: dict[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return given
    mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    return float(scale(mscale) / scale(all_dim)) if mscale and all_dim else scale(1)


def check_context_length(tokens: int | None) -> None:
    """Refuse a context length that is no positive number."""
    if tokens is not None and tokens < 1:
        raise InputError(f"a context length is a number of tokens from 1 on, not {tokens}")


def stretch(config: Any, tokens: int, name: str) -> None:  # noqa: ANN401
    """Extend a config's context to so many tokens by YaRN, in place.

    Nothing is trained: quality beyond the model's own context must be measured
    (`benchmarks/perplexity.py`), and short texts lose a little too. InputError where the model's
    positions cannot be stretched.
    """
    text = config.get_text_config()
    rope = dict(getattr(text, "rope_parameters", None) or {})
    kind = rope.get("rope_type")
    if kind not in (PLAIN, YARN):
        raise InputError(
            f"{name} cannot be stretched to {tokens} tokens: {_why_not(rope)}; "
            f"its context is at most {text.max_position_embeddings}"
        )
    trained = rope.get("original_max_position_embeddings") or text.max_position_embeddings
    rope.pop("attention_factor", None)  # it belongs to another factor
    rope |= {
        "rope_type": YARN,
        "factor": tokens / trained,
        "original_max_position_embeddings": trained,
    }
    text.max_position_embeddings = tokens
    text.rope_parameters = rope


def _why_not(rope: dict[str, Any]) -> str:
    """Why YaRN does not fit."""
    if kind := rope.get("rope_type"):
        return f"its rotary positions are scaled already ({kind})"
    if rope:
        return "its layers rotate positions in different ways"
    return "it has no rotary positions"
