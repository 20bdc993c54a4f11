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
from graft.draft.copies.texts import POOL_CONTEXT
from graft.errors import ContextLengthError, InputError
from graft.integrations.hf.engines import engine_for, pools_of, with_pool
from graft.integrations.hf.rows import Ends, GenerateArgs, Row
from graft.integrations.hf.split import agreed_seeds, check_split
from graft.integrations.hf.unsupported import check_supported, generate_arguments, unpadded
from graft.sampling import SamplingParams

_stats: weakref.WeakKeyDictionary[PreTrainedModel, list[Stats]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def last_stats(model: PreTrainedModel) -> list[Stats]:
    """The statistics of the last finished call for this model, one entry per row.

    If several threads use the model, use `return_dict_in_generate=True` instead: that output has
    the statistics of its own call as `graft_stats`.
    """
    with _lock:
        return list(_stats.get(model, ()))


def generate(  # noqa: PLR0913  transformers' signature and three of ours
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    draft: str | None = None,
    documents: Sequence[str | Sequence[int] | Tensor] = (),
    prediction: Sequence[int] | Tensor | None = None,
    pool: str | bool = False,
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,  # noqa: ANN401
) -> Tensor | GenerateDecoderOnlyOutput:
    """For `custom_generate`: transformers' greedy search and sampling, with drafting.

    `draft`, `documents` and `prediction` may be given to `model.generate` itself; the latter two
    are token ids the answer may repeat. With `pool`, earlier answers of the model to calls with the
    same `pool` (True, or the name of a user) are drafted from too. Greedy output is transformers'
    own token for token (in float32; in 16 bits rounding may differ). Sampled output has
    transformers' distribution but is not the same text: the seed comes from torch's generator, so
    `torch.manual_seed` makes it repeatable.

    Processors and criteria, also stateful ones, get every position once and in order, each row by
    itself with the padding of its batch in front; in a batch those not from transformers are copied
    for every row. Processors may get some positions after the token at which a criterion ends a
    row. The model runs in eval mode and is restored; on the CPU a packed copy of a Llama-shaped
    model's weights is cached until they change, the model is freed or `release(model)` is called.

    On a model that transformers split over several processes (tensor parallel) every process makes
    the same call; the seed is the first one's, and one of them alone may have a streamer.
    """
    arguments = generate_arguments(model, input_ids)
    streamer = streamer if streamer is not None else arguments.get("streamer")
    check_supported(model, generation_config, logits_processor, model_kwargs, arguments)
    check_split(model, stopping_criteria)
    if streamer is not None and len(input_ids) > 1:
        raise InputError("a streamer takes one sequence; generate from one prompt at a time")
    rows, ends = _rows(
        input_ids,
        unpadded(input_ids, model_kwargs),
        (logits_processor, stopping_criteria),
        generation_config,
    )
    texts = [each.tolist() if isinstance(each, Tensor) else each for each in documents]
    predicted = prediction.tolist() if isinstance(prediction, Tensor) else prediction
    options = ([row.prompt for row in rows], stopping_criteria.max_length, draft, texts, predicted)
    own_seeds = _seeds(rows, sampled=generation_config.do_sample)
    seeds = agreed_seeds(model, own_seeds, options)
    with engine_for(model) as engine:
        max_tokens = _tokens_left(engine, rows, input_ids.shape[1], stopping_criteria.max_length)
        salt = pool if isinstance(pool, str) else ""
        if pool:
            pools = pools_of(model)
            draft = with_pool(engine, draft or engine.default_draft, pools)
        requests = [
            Request(
                row.prompt,
                _params(seed, max_tokens),
                draft,
                texts,
                predicted,
                process=row.process if row.processes else None,
                stop_when=row.stop_when,
                cache_salt=salt,
            )
            for row, seed in zip(rows, seeds, strict=True)
        ]
        results = _run(engine, requests, streamer)
        if pool:
            answers = [
                [*row.prompt[-POOL_CONTEXT:], *result.token_ids]
                for row, result in zip(rows, results, strict=True)
            ]

            def learn() -> None:
                for answer in answers:
                    pools.add(salt, answer)

            engine.loop.lock.exclusive(learn)
    with _lock:
        _stats[model] = [result.stats for result in results]
    return _output(input_ids, rows, ends, results, generation_config)


def _rows(
    input_ids: Tensor,
    prompts: list[list[int]],
    callbacks: tuple[LogitsProcessorList, StoppingCriteriaList],
    config: GenerationConfig,
) -> tuple[list[Row], Ends]:
    as_dict = bool(config.return_dict_in_generate)
    args = GenerateArgs(
        scores=as_dict and bool(config.output_scores),
        logits=as_dict and bool(config.output_logits),
        sampled=bool(config.do_sample),
    )
    has_eos = any(hasattr(criterion, "eos_token_id") for criterion in callbacks[1])
    ends = Ends([None] * len(prompts), go_on=not has_eos)
    rows = [
        Row(number, input_ids, prompt, *callbacks, ends=ends, args=args)
        for number, prompt in enumerate(prompts)
    ]
    return rows, ends


def _tokens_left(engine: Engine, rows: list[Row], width: int, max_length: int | None) -> int:
    """The maximum of new tokens; ContextLengthError if they do not fit the context."""
    new_tokens = (1 << 31) if max_length is None else min(max(max_length - width, 1), 1 << 31)
    longest = max(len(row.prompt) for row in rows)
    if longest + new_tokens > engine.context_length:
        raise ContextLengthError(
            f"{longest} prompt tokens and {new_tokens} new ones exceed the "
            f"{engine.context_length} positions of {engine.model_name}; lower max_new_tokens"
        )
    return new_tokens


def _seeds(rows: list[Row], *, sampled: bool) -> list[int | None]:
    if not sampled:
        return [None] * len(rows)
    return torch.randint((1 << 63) - 1, (len(rows),)).tolist()


def _params(seed: int | None, max_tokens: int) -> SamplingParams:
    """transformers' processors and criteria do everything else."""
    temperature = 0.0 if seed is None else 1.0
    return SamplingParams(
        temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True
    )


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
    input_ids: Tensor, rows: list[Row], ends: Ends, results: list[Result], config: GenerationConfig
) -> Tensor | GenerateDecoderOnlyOutput:
    """transformers' output: rows padded to the longest one."""
    pad = _pad_token(config)
    if pad is None and not ends.go_on and len(set(ends.at)) > 1:
        raise InputError("rows end at different lengths; set pad_token_id")
    generated = input_ids.new_full((len(rows), ends.longest), 0 if pad is None else pad)
    for row, result, length in zip(generated, results, ends.lengths, strict=True):
        row[:length] = input_ids.new_tensor(result.token_ids[:length])
    sequences = torch.cat([input_ids, generated], -1)
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
    """[B, V] for every step; after the end of a row the padding token has probability 1."""
    padding = torch.full_like(of_rows[0][0], -torch.inf)
    padding[0 if pad is None else pad] = 0
    return tuple(
        torch.stack(
            [
                row[step] if step < length else padding
                for row, length in zip(of_rows, ends.lengths, strict=True)
            ]
        )
        for step in range(ends.longest)
    )
