"""Load on a server: many streaming clients, some of which leave early or send nonsense.

Every completed greedy answer is compared with the one the server gives to the same request alone.
Prints a JSON line every few seconds (memory of the server, what is running) and one at the end:

    python benchmarks/serve_load.py --url http://127.0.0.1:8000 --clients 64 --seconds 600 \
        --pid $(pgrep -f "graft serve") --out results/serve_load.jsonl
"""

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

WORDS = (
    "the contractor shall maintain every lift of the hospital within four hours of a report and "
    "keep a record of each visit which the client may read at any time without a fee "
).split()
INVALID = (
    {"temperature": -1},
    {"messages": []},
    {"unknown": 1},
    {"model": "no such model"},
    {"max_tokens": 10**9},
    {"guided_regex": "[a"},
)
LENGTHS = (8, 16, 32, 64, 128)


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    completed: int = 0
    different: int = 0
    left: int = 0
    refused: int = 0
    wrongly_answered: int = 0  # nonsense that was not refused with 400 or 404
    full: int = 0
    failed: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


def make_requests(count: int, seed: int) -> list[dict]:
    """Greedy chats of mixed lengths; some begin alike, as questions about one document do."""
    draw = random.Random(seed)
    document = " ".join(draw.choices(WORDS, k=300))
    requests = []
    for number in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.choice((5, 20, 60, 200))))
        content = f"{document}\nRepeat the beginning." if number % 3 == 0 else f"Continue: {text}"
        requests.append(
            {
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_tokens": draw.choice(LENGTHS),
                "stream": True,
            }
        )
    return requests


async def stream_text(
    client: httpx.AsyncClient, body: dict, tally: Tally, leave_after: int | None = None
) -> str | None:
    """The text of an answer; None where there was none, or the client left."""
    began, last, pieces = time.perf_counter(), None, []
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code == 429:
            tally.full += 1
            await asyncio.sleep(float(answer.headers["retry-after"]))
            return None
        if answer.status_code != 200:
            tally.failed.append(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
            return None
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                tally.failed.append(event["error"]["message"])
                return None
            piece = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if not piece:
                continue
            now = time.perf_counter()
            (tally.first if last is None else tally.between).append(now - (last or began))
            last = now
            pieces.append(piece)
            if leave_after is not None and len(pieces) >= leave_after:
                tally.left += 1
                return None
    return "".join(pieces)


async def send_nonsense(client: httpx.AsyncClient, body: dict, wrong: dict, tally: Tally) -> None:
    """A request that has to be refused."""
    answer = await client.post("/v1/chat/completions", json={**body, **wrong})
    if answer.status_code == 429:
        tally.full += 1
    elif answer.status_code in (400, 404):
        tally.refused += 1
    else:
        tally.wrongly_answered += 1


async def work(
    client: httpx.AsyncClient,
    expected: list[tuple[dict, str]],
    draw: random.Random,
    tally: Tally,
    options: argparse.Namespace,
) -> None:
    """One client: one request after the other until the time is up."""
    while time.perf_counter() < options.until:
        body, text = draw.choice(expected)
        fate = draw.random()
        try:
            if fate < options.invalid:
                await send_nonsense(client, body, draw.choice(INVALID), tally)
            elif fate < options.invalid + options.leaving:
                await stream_text(client, body, tally, leave_after=draw.randrange(1, 6))
            elif (got := await stream_text(client, body, tally)) is not None:
                tally.completed += 1
                tally.different += got != text
        except httpx.HTTPError as error:
            tally.failed.append(f"{type(error).__name__}: {error}")


async def watch(client: httpx.AsyncClient, tally: Tally, options: argparse.Namespace) -> None:
    """A line every few seconds."""
    while time.perf_counter() < options.until:
        await asyncio.sleep(options.every)
        report(await state(client, options) | {"completed": tally.completed}, options)


async def state(client: httpx.AsyncClient, options: argparse.Namespace) -> dict:
    """The server's memory and who is there."""
    lines = (await client.get("/metrics")).text.splitlines()
    values = {
        line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if "{" in line
    }
    found = {
        "seconds": round(time.perf_counter() - options.since, 1),
        "running": values["vllm:num_requests_running"],
        "waiting": values["vllm:num_requests_waiting"],
    }
    if options.pid:
        found["server_mb"] = round(psutil.Process(options.pid).memory_info().rss / 1e6, 1)
    return found


def report(line: dict, options: argparse.Namespace) -> None:
    """Print a line, and keep it."""
    text = json.dumps(line)
    print(text, flush=True)
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds) or [0.0]
    return {
        f"p{share}_ms": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 1)
        for share in (50, 90, 99)
    }


async def run(options: argparse.Namespace) -> int:
    """All of it; 0 if everything went as it should."""
    tally, headers = Tally(), {}
    if options.api_key:
        headers["Authorization"] = f"Bearer {options.api_key}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=options.url, headers=headers, timeout=600, limits=limits
    ) as client:
        alone = Tally()
        expected = []
        for body in make_requests(options.prompts, options.seed):
            expected.append((body, await stream_text(client, body, alone)))
        options.since = time.perf_counter()
        options.until = options.since + options.seconds
        workers = [
            work(client, expected, random.Random(options.seed + 1 + i), tally, options)
            for i in range(options.clients)
        ]
        await asyncio.gather(watch(client, tally, options), *workers)
        await asyncio.sleep(2)
        left_over = await state(client, options)
    report(
        {
            "clients": options.clients,
            "seconds": options.seconds,
            "completed": tally.completed,
            "different": tally.different,
            "left": tally.left,
            "refused": tally.refused,
            "wrongly_answered": tally.wrongly_answered,
            "queue_full": tally.full,
            "failed": len(tally.failed),
            "failures": tally.failed[:5],
            "first_token": percentiles(tally.first),
            "between_tokens": percentiles(tally.between),
            "alone_first_token": percentiles(alone.first),
            "alone_between_tokens": percentiles(alone.between),
            "tokens_per_second": round(
                (len(tally.first) + len(tally.between)) / options.seconds, 1
            ),
            "afterwards": left_over,
        },
        options,
    )
    stuck = left_over["running"] + left_over["waiting"]
    bad = tally.different + tally.wrongly_answered + len(tally.failed) + stuck
    return int(bool(bad) or not tally.completed)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--leaving", type=float, default=0.2, help="share that disconnect early")
    parser.add_argument("--invalid", type=float, default=0.1, help="share that must be refused")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=10, help="seconds between lines")
    parser.add_argument("--pid", type=int, help="of the server, for its memory")
    parser.add_argument("--out", type=Path)
    raise SystemExit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
