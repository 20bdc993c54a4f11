"""`graft.generate`: the `generate` of a transformers model with drafting."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria
from transformers.generation.streamers import BaseStreamer

from graft.errors import InputError
from graft.integrations.hf import loop


def generate(  # noqa: PLR0913
    model: PreTrainedModel,
    inputs: Tensor | Mapping[str, Tensor] | None = None,
    *,
    draft: str | None = None,
    documents: Sequence[str | Sequence[int] | Tensor] = (),
    prediction: str | Sequence[int] | Tensor | None = None,
    pool: str | bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    streamer: BaseStreamer | None = None,
    **options: Any,  # noqa: ANN401
) -> Tensor | GenerateDecoderOnlyOutput:
    """`model.generate(inputs, **options)` with drafting; see `graft.integrations.hf.generate`.

    `inputs` are token ids or what a tokenizer returns. With a `tokenizer`, documents and prediction
    may be texts, and `stop_strings` work (transformers does not pass the tokenizer to a
    `custom_generate`).
    """
    if isinstance(inputs, Mapping):
        options, inputs = {**inputs, **options}, None
    _take_stop_strings(model, tokenizer, options)
    texts = [_ids(text, tokenizer) for text in documents]
    predicted = None if prediction is None else _ids(prediction, tokenizer)
    drafted = partial(
        loop.generate,
        draft=draft,
        documents=texts,
        prediction=predicted,
        pool=pool,
        streamer=streamer,
    )
    return model.generate(inputs, custom_generate=drafted, streamer=streamer, **options)


def _ids(
    text: str | Sequence[int] | Tensor, tokenizer: PreTrainedTokenizerBase | None
) -> Sequence[int] | Tensor:
    if not isinstance(text, str):
        return text
    return _required(tokenizer)(text, add_special_tokens=False, verbose=False).input_ids


def _required(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise InputError("documents as text and stop_strings need a tokenizer; pass tokenizer=...")
    return tokenizer


def _take_stop_strings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, options: dict[str, Any]
) -> None:
    """Turn stop strings into a criterion; transformers would need the tokenizer for that."""
    if model.generation_config.stop_strings:
        raise InputError(
            "model.generation_config.stop_strings cannot be used; set it to None and pass "
            "stop_strings=... with the call"
        )
    config = options.get("generation_config")
    strings = options.pop("stop_strings", None)
    if config is not None and config.stop_strings:
        strings = strings or config.stop_strings
        options["generation_config"] = config = copy.deepcopy(config)
        config.stop_strings = None
    if strings:
        criterion = StopStringCriteria(_required(tokenizer), strings)
        given = options.get("stopping_criteria") or []
        options["stopping_criteria"] = StoppingCriteriaList([*given, criterion])
