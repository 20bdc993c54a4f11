"""How a worker and the driver talk: one JSON object per line over stdin and stdout.

The worker first says {"ready": {...versions and settings...}}, then answers each request
{"id", "prompt_token_ids", "max_tokens", "method"} with
{"id", "token_ids", "prefill_seconds", "total_seconds", "tokens"}, or {"id", "error"}.
`prefill_seconds` is the time to the first token; `token_ids` includes the end token if it was met.
Standard library only: each worker runs in the environment of its peer.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distributions

DTYPES = ("float32", "bfloat16", "float16")


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every worker has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--model", required=True, help="model folder (llama: a GGUF file)")
    options.add_argument("--dtype", choices=DTYPES, default="float32")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--max-model-len", type=int, default=8192)
    return options


def versions(*packages: str) -> dict[str, str]:
    """Versions of those that are installed, for the record."""
    return {d.name: d.version for d in distributions() if d.name in packages}


def private_stdout() -> object:
    """Keep stdout for answers alone: whatever a library prints goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel


def timed(chunks: Iterable[list[int]]) -> dict:
    """Run a generation that hands over its new tokens step by step, and time it.

    `chunks` must be lazy: the clock starts here.
    """
    start = time.perf_counter()
    token_ids: list[int] = []
    prefill_seconds = None
    for chunk in chunks:
        token_ids += chunk
        if prefill_seconds is None and token_ids:
            prefill_seconds = time.perf_counter() - start
    return {
        "token_ids": token_ids,
        "prefill_seconds": prefill_seconds,
        "total_seconds": time.perf_counter() - start,
        "tokens": len(token_ids),
    }


def requests() -> Iterator[dict]:
    """Requests until the driver closes stdin."""
    for line in sys.stdin:
        if line.strip():
            yield json.loads(line)


def serve(answer: Callable[[dict], dict], channel: object, about: dict) -> None:
    """Answer requests; a failed one is reported and the worker lives on."""

    def send(message: dict) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    send({"ready": about})
    for request in requests():
        try:
            send({"id": request["id"], **answer(request)})
        except Exception as error:  # the driver decides what to do about it
            traceback.print_exc()
            send({"id": request["id"], "error": f"{type(error).__name__}: {error}"})
