"""Run one answer, with the clock a user would hold: from the question to the last token."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graft.cli.show import Waiting

if TYPE_CHECKING:
    from graft import Engine, SamplingParams

Prompt = str | list[int] | list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """`result` as the engine returned it; seconds since the question was handed over."""

    draft: str
    result: Any
    first_token_seconds: float
    total_seconds: float


def answer(
    engine: "Engine",
    prompt: Prompt,
    params: "SamplingParams",
    draft: str,
    show: Callable[[Any], None] = lambda event: None,
) -> Answer:
    """Decode to the end, `show`ing every token event; the stream is closed whatever happens."""
    began = time.perf_counter()
    first_token = None
    stream = engine.stream(prompt, params, draft=draft)
    waiting = Waiting("reading the prompt")
    try:
        while not stream.ready():
            stream.step()
            read, count = stream.prefill_progress
            waiting.say(f"reading the prompt: {read:,} of {count:,} tokens")
        for event in stream:
            waiting.stop()
            first_token = first_token or time.perf_counter()
            show(event)
        result = stream.result
    finally:
        waiting.stop()
        stream.close()
    ended = time.perf_counter()
    return Answer(draft, result, (first_token or ended) - began, ended - began)
