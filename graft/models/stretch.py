"""Longer contexts than a model was trained for, by YaRN (Peng et al. 2023), as transformers has it.

Slow rotations are interpolated, fast ones left alone, and attention is sharpened by
0.1 ln(factor) + 1. Nothing is trained: how well a model reads beyond its own context must be
looked at (`benchmarks/quality/perplexity.py`), and short texts lose a little too.
"""

from typing import Any

from graft.errors import InputError

PLAIN, YARN = "default", "yarn"


def check_context_length(tokens: int | None) -> None:
    """Refuse what no model can have."""
    if tokens is not None and tokens < 1:
        raise InputError(f"a context length is a number of tokens from 1 on, not {tokens}")


def stretch(config: Any, tokens: int, name: str) -> None:  # noqa: ANN401
    """Let a transformers config, which reads fewer, have a context of so many tokens.

    Changes the config in place; InputError where the model's positions cannot be stretched.
    """
    text = config.get_text_config()
    rotary = dict(getattr(text, "rope_parameters", None) or {})
    kind = rotary.get("rope_type")
    if kind not in (PLAIN, YARN):
        raise InputError(
            f"{name} cannot be stretched to {tokens} tokens: {_positions(rotary)}; "
            f"it reads at most {text.max_position_embeddings}"
        )
    trained = rotary.get("original_max_position_embeddings") or text.max_position_embeddings
    rotary.pop("attention_factor", None)  # it belongs to another factor
    rotary |= {
        "rope_type": YARN,
        "factor": tokens / trained,
        "original_max_position_embeddings": trained,
    }
    text.max_position_embeddings = tokens
    text.rope_parameters = rotary


def _positions(rotary: dict[str, Any]) -> str:
    """Why YaRN does not fit."""
    if kind := rotary.get("rope_type"):
        return f"its rotary positions are scaled already ({kind})"
    if rotary:
        return "its layers turn positions in different ways"
    return "it has no rotary positions"
