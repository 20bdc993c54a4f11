"""How a worker and the runner talk: one JSON object per line over stdin and stdout.

The worker first says {"ready": {"versions": {...}, "settings": {...}}}, then answers each request

    {"id", "prompts": [[token ids]], "max_tokens", "end_tokens", "method", "temperature", "seeds"}

with what `timed` returns, or with {"id", "error"}. Answers include the end token if it was met;
where there are none, nothing but its length ends an answer.
Standard library only: each worker runs in the environment of its engine, where Graft is not.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distributions


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every worker has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--model", required=True, help="model folder (llama: a GGUF file)")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--device", default="cpu")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--max-model-len", type=int, default=8192)
    options.add_argument("--batch", type=int, default=1, help="most prompts at a time")
    return options


def about(packages: Iterable[str], settings: dict) -> dict:
    """Versions of those packages that are installed, and the settings, for the record."""
    names = {name.lower() for name in packages}
    found = {d.name: d.version for d in distributions() if d.name and d.name.lower() in names}
    return {"versions": found, "settings": settings}


def private_stdout() -> object:
    """Keep stdout for answers alone: whatever a library prints goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel


def timed(count: int, steps: Iterable[dict[int, list[int]]], end_tokens: list[int]) -> dict:
    """Run a generation that hands over each step's new tokens by prompt, and time it.

    `steps` must be lazy: the clock starts here. The prefill ends when every prompt has its first
    token; `first_tokens` came until then. `steps` counts those that gave a prompt more tokens than
    its first, over all prompts.
    """
    start = time.perf_counter()
    token_ids: list[list[int]] = [[] for _ in range(count)]
    prefill_seconds, first_tokens, later_steps = None, 0, 0
    for step in steps:
        for place, tokens in step.items():
            later_steps += bool(tokens and token_ids[place])
            token_ids[place] += tokens
        if prefill_seconds is None and all(token_ids):
            prefill_seconds = time.perf_counter() - start
            first_tokens = sum(map(len, token_ids))
    total_seconds = time.perf_counter() - start
    return {
        "token_ids": token_ids,
        "finish_reasons": [finish_reason(ids, end_tokens) for ids in token_ids],
        "prefill_seconds": total_seconds if prefill_seconds is None else prefill_seconds,
        "total_seconds": total_seconds,
        "first_tokens": first_tokens,
        "steps": later_steps,
    }


def finish_reason(token_ids: list[int], end_tokens: list[int]) -> str:
    """As OpenAI and vLLM name them."""
    return "stop" if token_ids and token_ids[-1] in end_tokens else "length"


def requests() -> Iterator[dict]:
    """Requests until the runner closes stdin."""
    for line in sys.stdin:
        if line.strip():
            yield json.loads(line)


def serve(answer: Callable[[dict], dict], channel: object, ready: dict) -> None:
    """Answer requests; a failed one is reported and the worker lives on."""

    def send(message: dict) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    send({"ready": ready})
    for request in requests():
        try:
            send({"id": request["id"], **answer(request)})
        except Exception as error:  # the runner decides what to do about it
            traceback.print_exc()
            send({"id": request["id"], "error": f"{type(error).__name__}: {error}"})
