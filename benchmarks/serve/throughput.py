"""Throughput of a server with some RAG requests at once: plain against drafting, and others.

Every request asks about passages of a document, in an order of its own. The same requests go to
every variant in turn, with the order reversed in every other repeat; ratios are paired by repeat.
Greedy outputs of one server, plain and drafted, must be the same.

    python -m benchmarks.serve.throughput --out results/serve_throughput.jsonl
    python -m benchmarks.serve.throughput --against http://127.0.0.1:8001   # vLLM, SGLang, ...
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import rows_file
from benchmarks.serve.client import Streamed, http_client, served_model, stream
from benchmarks.serve.server import started
from graft.bench.result_file import ResultFile

DOCUMENT = Path(__file__).parents[2] / "examples" / "service_agreement.md"
QUESTIONS = (
    "List the equipment that the Contractor maintains.",
    "What are the response times?",
    "When and how can the agreement be ended?",
    "What does the Client pay, and when?",
    "Who is liable for damage, and up to which amount?",
    "Quote the obligations of the Contractor.",
)
PASSAGES = 6  # of a prompt


@dataclass(frozen=True, slots=True)
class Variant:
    """A server and further fields of the requests."""

    name: str
    client: httpx.AsyncClient
    fields: dict[str, Any]


def make_requests(count: int, seed: int, max_tokens: int) -> list[dict]:
    """Chats about passages; no two share a prefix, so that no cache helps one variant more."""
    draw = random.Random(seed)
    text = DOCUMENT.read_text(encoding="utf-8")
    passages = [each.strip() for each in text.split("\n\n") if len(each.strip()) > 80]
    requests = []
    for number in range(count):
        chosen = "\n\n".join(draw.sample(passages, min(PASSAGES, len(passages))))
        content = f"Case {seed}-{number}.\n\n{chosen}\n\n{draw.choice(QUESTIONS)}"
        requests.append(
            {
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_tokens": max_tokens,
            }
        )
    return requests


async def answer_all(
    variant: Variant, requests: list[dict], at_once: int
) -> tuple[float, list[Streamed]]:
    """Tokens per second with so many requests at once, and the answers in order."""
    places = asyncio.Semaphore(at_once)

    async def answer(body: dict) -> Streamed:
        async with places:
            return await stream(variant.client, {**body, **variant.fields})

    began = time.perf_counter()
    answers = await asyncio.gather(*map(answer, requests))
    seconds = time.perf_counter() - began
    for each in answers:
        if each.error is not None or each.busy is not None:
            raise SystemExit(f"{variant.name} failed: {each.error or 'too many requests'}")
    return sum(each.tokens for each in answers) / seconds, answers


async def compare(variants: list[Variant], options: argparse.Namespace, file: ResultFile) -> None:
    """All repeats; prints the ratios for each concurrency."""
    for at_once in options.concurrency:
        speeds: dict[str, list[float]] = {variant.name: [] for variant in variants}
        for repeat in range(options.repeats):
            requests = make_requests(
                max(at_once, options.requests), 1000 * at_once + repeat, options.max_tokens
            )
            texts = {}
            for variant in variants if repeat % 2 == 0 else variants[::-1]:
                speed, answers = await answer_all(variant, requests, at_once)
                speeds[variant.name].append(speed)
                texts[variant.name] = [each.text for each in answers]
                first = statistics.median(
                    each.pieces[0] if each.pieces else 0.0 for each in answers
                )
                row = {"concurrency": at_once, "repeat": repeat, "variant": variant.name}
                row |= {"tokens_per_second": round(speed, 1)}
                row |= {"first_token_seconds": round(first, 3)}
                row |= {"tokens": sum(each.tokens for each in answers)}
                print(row, flush=True)
                file.row(row)
            same = sum(a == b for a, b in zip(texts["plain"], texts["drafting"], strict=True))
            if same < len(requests):
                raise SystemExit(f"{len(requests) - same} drafted answers differ from plain ones")
        print(summary(at_once, speeds), flush=True)


def summary(at_once: int, speeds: dict[str, list[float]]) -> dict:
    """Medians, and the ratios of drafting to everything else, paired by repeat."""
    ratios = {}
    for name, values in speeds.items():
        if name != "drafting":
            paired = [a / b for a, b in zip(speeds["drafting"], values, strict=True)]
            ratios[f"drafting / {name}"] = {
                "median": round(statistics.median(paired), 3),
                "min": round(min(paired), 3),
                "max": round(max(paired), 3),
            }
    medians = {name: round(statistics.median(values), 1) for name, values in speeds.items()}
    return {"concurrency": at_once, "tokens_per_second": medians, "ratios": ratios}


async def run(options: argparse.Namespace) -> None:
    """Graft's server plain and drafting, and others as they are."""
    async with contextlib.AsyncExitStack() as stack:
        url = options.url
        if not url:
            url = stack.enter_context(started(options.serve.split())).url
        own = await stack.enter_async_context(http_client(url, options.api_key))
        variants = [
            # a salt each: no variant reuses the other's prefix cache
            Variant("plain", own, {"speculative": {"enabled": False}, "cache_salt": "plain"}),
            Variant("drafting", own, {"cache_salt": "drafting"}),
        ]
        for other in options.against:
            client = await stack.enter_async_context(http_client(other, options.api_key))
            variants.append(Variant(other, client, {"model": await served_model(client, None)}))
        for variant in variants:  # warm-up
            await answer_all(variant, make_requests(1, 0, 8), 1)
        with rows_file("serve_throughput", options) as file:
            await compare(variants, options, file)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4, help="of a repeat, at least")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument(
        "--serve", default="smollm2-135m --dtype fp32 --max-batch 16", help="for graft serve"
    )
    parser.add_argument("--url", help="a running server of Graft")
    parser.add_argument("--against", nargs="+", default=[], metavar="URL", help="other servers")
    parser.add_argument("--api-key")
    parser.add_argument("--out", type=Path)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
