"""Generate one answer and time it: from the question to the last token."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graft.cli.show import Spinner

if TYPE_CHECKING:
    from graft import Engine, Result, SamplingParams, TokenEvent

Prompt = str | list[int] | list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's `result`; seconds since the request."""

    draft: str
    result: "Result"
    first_token_seconds: float
    total_seconds: float


def answer(
    engine: "Engine",
    prompt: Prompt,
    params: "SamplingParams",
    draft: str,
    show: Callable[["TokenEvent"], None] = lambda event: None,
) -> Answer:
    """Decode to the end, `show`ing every token event; the stream is always closed."""
    began = time.perf_counter()
    first_token = None
    stream = engine.stream(prompt, params, draft=draft)
    spinner = Spinner("prefill")
    try:
        while not stream.ready():
            stream.step()
            done, count = stream.prefill_progress
            spinner.update(f"prefill: {done:,} of {count:,} prompt tokens")
        for event in stream:
            spinner.stop()
            first_token = first_token or time.perf_counter()
            show(event)
        result = stream.result
    finally:
        spinner.stop()
        stream.close()
    ended = time.perf_counter()
    return Answer(draft, result, (first_token or ended) - began, ended - began)
