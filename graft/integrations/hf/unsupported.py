"""Options of transformers' `generate` that Graft does not support: errors, never ignored."""

import inspect
import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel
from transformers.generation import GenerationMode, UnbatchedClassifierFreeGuidanceLogitsProcessor

from graft.errors import InputError

# transformers prepares these for its own loop; its empty cache is not used.
_KNOWN = {"attention_mask", "position_ids", "past_key_values", "cache_params", "use_cache",
          "logits_to_keep", "cache_position"}  # fmt: skip
_CACHES = ("past_key_values", "cache_params")
_PLAIN_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


def generate_arguments(model: PreTrainedModel, input_ids: Tensor) -> dict[str, Any]:
    """The arguments and variables of the calling `model.generate`, empty if there is none.

    transformers (5.10 to 5.22 at least) passes neither the streamer nor the assistant model to a
    callable: the streamer would never end and the assistant would be ignored.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    found = dict(frame.f_locals) if frame else {}
    return found if found.get("self") is model and found.get("input_ids") is input_ids else {}


def check_supported(
    model: PreTrainedModel,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    given: dict[str, Any],
    arguments: dict[str, Any],
) -> None:
    """Raise InputError for unsupported options; `given` are the arguments of the forward."""
    if model.config.is_encoder_decoder:
        raise InputError("encoder-decoder models are not supported; Graft runs decoders")
    mode = config.get_generation_mode(arguments.get("assistant_model"))
    if mode not in _PLAIN_MODES:
        raise InputError(
            f"{mode.value.replace('_', ' ')} is not supported: Graft does greedy search and "
            "sampling, and drafts by itself (num_beams=1, no assistant, no prompt lookup)"
        )
    for name, found in _unsupported(config, processors, given, arguments):
        if found:
            raise InputError(f"{name} is not supported by Graft's generate; leave it out")


def _unsupported(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    given: dict[str, Any],
    arguments: dict[str, Any],
) -> list[tuple[str, bool]]:
    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor
    kind = config.cache_implementation
    return [
        ("output_attentions", bool(config.output_attentions)),
        ("output_hidden_states", bool(config.output_hidden_states)),
        ("guidance_scale", any(isinstance(each, guidance) for each in processors)),
        # Static and hybrid caches give the same tokens and are ignored; quantised ones
        # change tokens, offloaded ones save memory.
        (f"cache_implementation={kind!r}", kind is not None and kind.startswith(("quant", "off"))),
        ("compile_config", config.compile_config is not None),
        ("synced_gpus", bool(arguments.get("synced_gpus"))),
        *((name, _is_callers_cache(name, given, arguments)) for name in _CACHES),
        *((name, value is not None) for name, value in given.items() if name not in _KNOWN),
    ]


def _is_callers_cache(name: str, given: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Whether the caller passed a cache."""
    return (arguments["kwargs"] if arguments else given).get(name) is not None


def unpadded(input_ids: Tensor, given: dict[str, Any]) -> list[list[int]]:
    """The prompts without masked tokens."""
    mask = given.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    if mask.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(input_ids.shape)}; "
            "they must be the same"
        )
    if not bool((mask[:, -1:] == 1).all()) or not input_ids.shape[1]:
        raise InputError("a prompt is empty or padded on the right; use padding_side='left'")
    usual, places = mask.long().cumsum(-1) - 1, given.get("position_ids")
    if places is not None and bool(((places.to(usual.device) != usual) & (mask == 1)).any()):
        raise InputError("position_ids of your own are not supported; leave them out")
    rows = zip(input_ids.tolist(), mask.tolist(), strict=True)
    return [[token for token, seen in zip(*row, strict=True) if seen] for row in rows]
