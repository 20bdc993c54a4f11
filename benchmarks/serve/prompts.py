"""Requests to a server: chats of a suite, or made-up ones of mixed lengths."""

import random
from typing import Any

from benchmarks.serve.settings import ServeSettings
from benchmarks.suites.task import read_suite, select

WORDS = (
    "the contractor shall maintain every lift of the hospital within four hours of a report and "
    "keep a record of each visit which the client may read at any time without a fee "
).split()
# fields that make a request invalid
INVALID: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"messages": []},
    {"model": "no such model"},
    {"max_tokens": -1},
)


def bodies(settings: ServeSettings, model: str) -> list[dict[str, Any]]:
    """Chat requests, always the same for the same settings."""
    shared = {
        "model": model,
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
    }
    chosen = made_up(settings.prompts) if settings.suite is None else _of_suite(settings)
    return [{"messages": messages, **shared} for messages in chosen]


def made_up(count: int, seed: int = 0) -> list[list[dict[str, str]]]:
    """Some share a prefix, like questions about one document."""
    draw = random.Random(seed)
    document = " ".join(draw.choices(WORDS, k=300))
    found = []
    for number in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.choice((5, 20, 60, 200))))
        content = f"{document}\nRepeat the beginning." if number % 3 == 0 else f"Continue: {text}"
        found.append([{"role": "user", "content": content}])
    return found


def _of_suite(settings: ServeSettings) -> list[list[dict[str, str]]]:
    prompts = select(read_suite(settings.suite, settings.data), limit=None, split="report")
    step = max(len(prompts) // settings.prompts, 1)
    contents = [prompt.content for prompt in prompts[::step][: settings.prompts]]
    return [[{"role": "user", "content": c}] if isinstance(c, str) else c for c in contents]
