"""The decoding loop that `model.generate(..., custom_generate=generate)` runs."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from graft.decode.engine import Engine
from graft.decode.output import Result
from graft.decode.request import Request
from graft.decode.stats import Stats
from graft.errors import ContextLengthError, InputError
from graft.integrations.hf.engines import engine_for
from graft.integrations.hf.refusals import asked_of_transformers, refuse, unpadded
from graft.integrations.hf.rows import Ends, GenerateArgs, Row
from graft.integrations.hf.split import agreed_seeds, refuse_on_split
from graft.sampling import SamplingParams

_stats: weakref.WeakKeyDictionary[PreTrainedModel, list[Stats]] = weakref.WeakKeyDictionary()
_door = threading.Lock()


def last_stats(model: PreTrainedModel) -> list[Stats]:
    """What the last finished call for this model cost and gained, one entry per row.

    Where several threads use the model, ask for `return_dict_in_generate=True` instead: that
    output has the statistics of its own call as `graft_stats`.
    """
    with _door:
        return list(_stats.get(model, ()))


def generate(  # noqa: PLR0913  transformers' contract, and our three
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    draft: str | None = None,
    documents: Sequence[str | Sequence[int] | Tensor] = (),
    prediction: Sequence[int] | Tensor | None = None,
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,  # noqa: ANN401
) -> Tensor | GenerateDecoderOnlyOutput:
    """For `custom_generate`: greedy search and sampling as transformers does them, drafted.

    `draft`, `documents` and `prediction` may be given to `model.generate` itself; the latter two
    are token ids the answer may repeat. Greedy output is transformers' own token for token (in
    float32; in 16 bits rounding may differ). Sampled output has transformers' distribution but
    is not the text it would draw: the seed comes from torch's generator, so `torch.manual_seed`
    makes it repeatable.

    Processors and criteria, also ones that remember earlier calls, see every position once and in
    order, each row by itself with the padding of its batch in front; in a batch those not from
    transformers are copied for every row. After the token at which a criterion ends a row,
    processors may already have seen some positions beyond. The model runs as in eval mode and is
    left as it was; on the CPU a packed copy of a Llama-shaped model's weights is kept until they
    change, the model is gone or `release(model)` is called.

    On a model that transformers split over several processes (tensor parallel) every process makes
    the same call; the seed is the first one's, and one of them alone may have a streamer.
    """
    asked = asked_of_transformers(model, input_ids)
    streamer = streamer if streamer is not None else asked.get("streamer")
    refuse(model, generation_config, logits_processor, model_kwargs, asked)
    refuse_on_split(model, stopping_criteria)
    if streamer is not None and len(input_ids) > 1:
        raise InputError("a streamer shows one answer; generate from one prompt at a time")
    rows, ends = _rows(
        input_ids,
        unpadded(input_ids, model_kwargs),
        (logits_processor, stopping_criteria),
        generation_config,
    )
    texts = [each.tolist() if isinstance(each, Tensor) else each for each in documents]
    guess = prediction.tolist() if isinstance(prediction, Tensor) else prediction
    seeds = _seeds(rows, sampled=generation_config.do_sample)
    asked_for = ([row.prompt for row in rows], stopping_criteria.max_length, draft, texts, guess)
    seeds = agreed_seeds(model, seeds, asked_for)
    with engine_for(model) as engine:
        most = _room(engine, rows, input_ids.shape[1], stopping_criteria.max_length)
        requests = [
            Request(
                row.prompt,
                _params(seed, most),
                draft,
                texts,
                guess,
                process=row.process if row.processes else None,
                stop_when=row.stop_when,
            )
            for row, seed in zip(rows, seeds, strict=True)
        ]
        results = _run(engine, requests, streamer)
    with _door:
        _stats[model] = [result.stats for result in results]
    return _output(input_ids, rows, ends, results, generation_config)


def _rows(
    input_ids: Tensor,
    prompts: list[list[int]],
    callbacks: tuple[LogitsProcessorList, StoppingCriteriaList],
    config: GenerationConfig,
) -> tuple[list[Row], Ends]:
    wanted = bool(config.return_dict_in_generate)
    args = GenerateArgs(
        scores=wanted and bool(config.output_scores),
        logits=wanted and bool(config.output_logits),
        sampled=bool(config.do_sample),
    )
    padded = any(hasattr(criterion, "eos_token_id") for criterion in callbacks[1])
    ends = Ends([None] * len(prompts), go_on=not padded)
    rows = [
        Row(number, input_ids, prompt, *callbacks, ends=ends, args=args)
        for number, prompt in enumerate(prompts)
    ]
    return rows, ends


def _room(engine: Engine, rows: list[Row], width: int, max_length: int | None) -> int:
    """Tokens that may be written; more than the model has positions for are refused."""
    most = (1 << 31) if max_length is None else min(max(max_length - width, 1), 1 << 31)
    longest = max(len(row.prompt) for row in rows)
    if longest + most > engine.context_length:
        raise ContextLengthError(
            f"{longest} prompt tokens and {most} new ones do not fit the {engine.context_length} "
            f"positions of {engine.model_name}; lower max_new_tokens"
        )
    return most


def _seeds(rows: list[Row], *, sampled: bool) -> list[int | None]:
    if not sampled:
        return [None] * len(rows)
    return torch.randint((1 << 63) - 1, (len(rows),)).tolist()


def _params(seed: int | None, most: int) -> SamplingParams:
    """Everything else is done by transformers' processors and criteria."""
    temperature = 0.0 if seed is None else 1.0
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=most, ignore_eos=True)


def _run(engine: Engine, requests: list[Request], streamer: BaseStreamer | None) -> list[Result]:
    if streamer is None:
        return engine.generate(requests)
    stream = engine.stream(requests[0])
    try:
        for event in stream:
            streamer.put(torch.tensor([event.token]))
    finally:
        stream.close()
    streamer.end()
    return [stream.result]


def _output(
    input_ids: Tensor,
    rows: list[Row],
    ends: Ends,
    results: list[Result],
    config: GenerationConfig,
) -> Tensor | GenerateDecoderOnlyOutput:
    """What transformers returns: rows as long as the longest, padded behind their ends."""
    pad = _pad_token(config)
    if pad is None and not ends.go_on and len(set(ends.at)) > 1:
        raise InputError("rows end at different lengths; set pad_token_id")
    written = input_ids.new_full((len(rows), ends.longest), 0 if pad is None else pad)
    for number, result in enumerate(results):
        length = ends.longest if ends.go_on else ends.at[number]
        written[number, :length] = input_ids.new_tensor(result.token_ids[:length])
    sequences = torch.cat([input_ids, written], -1)
    if not config.return_dict_in_generate:
        return sequences
    output = GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=_steps([row.scores for row in rows], ends, pad) if config.output_scores else None,
        logits=_steps([row.logits for row in rows], ends, pad) if config.output_logits else None,
    )
    output.graft_stats = [result.stats for result in results]
    return output


def _pad_token(config: GenerationConfig) -> int | None:
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(config, name) is not None:
            return int(torch.as_tensor(getattr(config, name)).flatten()[0])
    return None


def _steps(of_rows: list[list[Tensor]], ends: Ends, pad: int | None) -> tuple[Tensor, ...]:
    """[B, V] for every step; behind a row's end padding is certain."""
    certain = torch.full_like(of_rows[0][0], -torch.inf)
    certain[0 if pad is None else pad] = 0
    return tuple(
        torch.stack(
            [
                row[step] if step < (ends.longest if ends.go_on else end) else certain
                for row, end in zip(of_rows, ends.at, strict=True)
            ]
        )
        for step in range(ends.longest)
    )
