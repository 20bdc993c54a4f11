"""Throughput of a server with some RAG requests at once: plain against drafting, and others.

Every request asks about passages of a document, in an order of its own. Rounds are interleaved: the
same requests go to every way of answering in turn, first one first, then the other, and ratios are
paired by round. Greedy answers of one server, plain and drafted, must be the same.

    python benchmarks/serve_throughput.py --out results/serve_throughput.jsonl
    python benchmarks/serve_throughput.py --against http://127.0.0.1:8001   # vLLM, SGLang, ...
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
from served import say, started

from graft.bench.serve.client import Streamed, http_client, served_model, stream

DOCUMENT = Path(__file__).parents[1] / "examples" / "service_agreement.md"
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
class Way:
    """A way of answering: a server, and what is said to it besides."""

    name: str
    client: httpx.AsyncClient
    fields: dict[str, Any]


def make_requests(count: int, seed: int, max_tokens: int) -> list[dict]:
    """Chats about passages; no two begin alike, so that no cache helps one way more."""
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


async def answer_all(way: Way, requests: list[dict], at_once: int) -> tuple[float, list[Streamed]]:
    """Tokens per second with so many requests at once, and the answers in order."""
    places = asyncio.Semaphore(at_once)

    async def answer(body: dict) -> Streamed:
        async with places:
            return await stream(way.client, {**body, **way.fields})

    began = time.perf_counter()
    answers = await asyncio.gather(*map(answer, requests))
    seconds = time.perf_counter() - began
    for each in answers:
        if each.error is not None or each.busy is not None:
            raise SystemExit(f"{way.name} failed: {each.error or 'too many requests'}")
    return sum(each.tokens for each in answers) / seconds, answers


async def compare(ways: list[Way], options: argparse.Namespace) -> None:
    """All rounds; a line for each, and one with the ratios for each number of requests."""
    for at_once in options.at_once:
        speeds: dict[str, list[float]] = {way.name: [] for way in ways}
        for turn in range(options.rounds):
            requests = make_requests(
                max(at_once, options.least), 1000 * at_once + turn, options.max_tokens
            )
            texts = {}
            for way in ways if turn % 2 == 0 else ways[::-1]:
                speed, answers = await answer_all(way, requests, at_once)
                speeds[way.name].append(speed)
                texts[way.name] = [each.text for each in answers]
                first = statistics.median(
                    each.pieces[0] if each.pieces else 0.0 for each in answers
                )
                say({"at_once": at_once, "round": turn, "way": way.name,
                     "tokens_per_second": round(speed, 1), "median_first_token_s": round(first, 3),
                     "tokens": sum(each.tokens for each in answers)}, options.out)  # fmt: skip
            same = sum(a == b for a, b in zip(texts["plain"], texts["drafting"], strict=True))
            if same < len(requests):
                raise SystemExit(f"{len(requests) - same} drafted answers differ from plain ones")
        say(summary(at_once, speeds), options.out)


def summary(at_once: int, speeds: dict[str, list[float]]) -> dict:
    """Medians, and the ratios of drafting to everything else, paired by round."""
    ratios = {}
    for name, values in speeds.items():
        if name != "drafting":
            paired = [a / b for a, b in zip(speeds["drafting"], values, strict=True)]
            ratios[f"drafting / {name}"] = {
                "median": round(statistics.median(paired), 3),
                "least": round(min(paired), 3),
                "most": round(max(paired), 3),
            }
    medians = {name: round(statistics.median(values), 1) for name, values in speeds.items()}
    return {"summary": True, "at_once": at_once, "tokens_per_second": medians, "ratios": ratios}


async def run(options: argparse.Namespace) -> None:
    """Our server in two ways, and others as they are."""
    async with contextlib.AsyncExitStack() as stack:
        url = options.url
        if not url:
            url = stack.enter_context(started(options.serve.split())).url
        own = await stack.enter_async_context(http_client(url, options.api_key))
        ways = [
            # A salt each: nobody finds the prompts that the other has read
            Way("plain", own, {"speculative": {"enabled": False}, "cache_salt": "plain"}),
            Way("drafting", own, {"cache_salt": "drafting"}),
        ]
        for other in options.against:
            client = await stack.enter_async_context(http_client(other, options.api_key))
            ways.append(Way(other, client, {"model": await served_model(client, None)}))
        for way in ways:  # nobody is measured cold
            await answer_all(way, make_requests(1, 0, 8), 1)
        await compare(ways, options)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=int, default=4, help="requests in a round")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument(
        "--serve", default="smollm2-135m --dtype fp32 --max-batch 16", help="for graft serve"
    )
    parser.add_argument("--url", help="a server of ours that runs already")
    parser.add_argument("--against", nargs="+", default=[], metavar="URL", help="other servers")
    parser.add_argument("--api-key")
    parser.add_argument("--out", type=Path)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
