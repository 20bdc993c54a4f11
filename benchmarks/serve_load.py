"""The server under load: many streaming clients, some of which leave early or send nonsense.

Starts `graft serve`, asks for every answer once alone, then lets the clients loose and compares:
every completed greedy answer has to be the one given alone. JSON lines go to `--out`: one every few
seconds (memory of the server, who is there, what came of requests), the summary last. The exit
status is 0 if nothing differed, failed, got stuck or stayed behind.

    python benchmarks/serve_load.py --minutes 10 --out results/serve_load.jsonl
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from served import Served, gauges, say, settled, started

from graft.bench.serve.client import Streamed, http_client, is_refused, stream
from graft.bench.serve.load import percentiles
from graft.bench.serve.prompts import made_up

INVALID = (
    {"temperature": -1},
    {"temperature": "warm"},
    {"messages": []},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"unknown": 1},
    {"model": "no such model"},
    {"max_tokens": 10**9},
    {"guided_regex": "[a"},
    {"speculative": {"method": "store:/etc"}},
    {"logit_bias": {"1": 1000}},
)
LENGTHS = (8, 16, 32, 64, 128)


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    tokens: int = 0

    def count(self, answer: Streamed, expected: str) -> None:
        """A request that was meant to be answered, to the end or until the client left."""
        self.between += answer.gaps
        self.first += answer.pieces[:1]
        self.tokens += len(answer.pieces)
        if answer.busy is not None:
            self.outcomes["queue_full"] += 1
        elif answer.error is not None:
            self.fail(answer.error)
        elif answer.left:
            self.outcomes["left"] += 1
        else:
            self.outcomes["completed" if answer.text == expected else "different"] += 1

    def fail(self, how: str) -> None:
        """Something that must not be."""
        self.outcomes["failed"] += 1
        self.failures.append(how)


def make_requests(count: int, seed: int) -> list[dict]:
    """Greedy chats whose answers have mixed lengths."""
    draw = random.Random(seed)
    return [
        {"messages": messages, "temperature": 0, "max_tokens": draw.choice(LENGTHS)}
        for messages in made_up(count, seed)
    ]


@dataclass(slots=True)
class Load:
    """One run against one server."""

    served: Served
    client: httpx.AsyncClient
    options: argparse.Namespace
    expected: list[tuple[dict, str]] = field(default_factory=list)
    alone: Tally = field(default_factory=Tally)
    tally: Tally = field(default_factory=Tally)
    since: float = 0.0
    until: float = 0.0

    async def run(self) -> int:
        """All of it; 0 if everything went as it should."""
        for body in make_requests(self.options.prompts, self.options.seed):
            answer = await stream(self.client, body)
            self.alone.count(answer, answer.text)
            self.expected.append((body, answer.text))
        if self.alone.failures:
            raise SystemExit(f"not even alone: {self.alone.failures[0]}")
        self.since = time.perf_counter()
        self.until = self.since + 60 * self.options.minutes
        clients = [self._work(random.Random(i)) for i in range(self.options.clients)]
        await asyncio.gather(self._watch(), *clients)
        behind = await settled(self.client, 30)
        say(self._summary(behind), self.options.out)
        found = self.tally.outcomes
        bad = sum(found[each] for each in ("different", "wrongly_answered", "failed", "stuck"))
        return int(bool(bad or behind) or not found["completed"])

    async def _work(self, draw: random.Random) -> None:
        """One client: one request after the other until the time is up."""
        while time.perf_counter() < self.until:
            body, text = draw.choice(self.expected)
            fate = draw.random()
            try:
                async with asyncio.timeout(self.options.stuck):
                    if fate < self.options.invalid:
                        await self._nonsense(body, draw.choice(INVALID))
                        continue
                    leaving = fate < self.options.invalid + self.options.leaving
                    answer = await stream(self.client, body, draw.randrange(6) if leaving else None)
                    self.tally.count(answer, text)
                    await asyncio.sleep(answer.busy or 0)
            except TimeoutError:
                self.tally.outcomes["stuck"] += 1
            except httpx.HTTPError as error:
                self.tally.fail(f"{type(error).__name__}: {error}")

    async def _nonsense(self, body: dict, wrong: dict) -> None:
        """A request that has to be refused."""
        kinds = {None: "queue_full", True: "refused", False: "wrongly_answered"}
        self.tally.outcomes[kinds[await is_refused(self.client, body | wrong)]] += 1

    async def _watch(self) -> None:
        """A line every few seconds."""
        while (left := self.until - time.perf_counter()) > 0:
            await asyncio.sleep(min(left, self.options.every))
            megabytes, now = self.served.megabytes, await gauges(self.client)
            if megabytes:
                self.tally.megabytes.append(megabytes)
            say(
                {
                    "seconds": round(time.perf_counter() - self.since, 1),
                    "server_mb": megabytes,
                    "running": now["vllm:num_requests_running"],
                    "waiting": now["vllm:num_requests_waiting"],
                    **self.tally.outcomes,
                },
                self.options.out,
            )

    def _summary(self, behind: float) -> dict:
        tally, seconds = self.tally, time.perf_counter() - self.since
        between = percentiles(tally.between)
        return {
            "summary": True,
            "clients": self.options.clients,
            "minutes": self.options.minutes,
            "server": self.options.serve,
            **{name: tally.outcomes[name] for name in ("completed", "different", "left", "refused",
               "wrongly_answered", "queue_full", "stuck", "failed")},
            "failures": tally.failures[:5],
            "still_running_afterwards": behind,
            "first_token_ms": percentiles(tally.first),
            "between_tokens_ms": between,
            "between_tokens_p99_by_p50": between and ratio(between["p99"], between["p50"]),
            "alone_first_token_ms": percentiles(self.alone.first),
            "alone_between_tokens_ms": percentiles(self.alone.between),
            "tokens_per_second": round(tally.tokens / seconds, 1),
            "server_mb": memory(tally.megabytes),
        }  # fmt: skip


def memory(megabytes: list[float]) -> dict[str, float] | None:
    """Whether it stays flat: the second quarter of the run against the last one."""
    if len(megabytes) < 4:
        return {"peak": max(megabytes)} if megabytes else None
    quarter = len(megabytes) // 4
    before = statistics.median(megabytes[quarter : 2 * quarter])
    after = statistics.median(megabytes[-quarter:])
    return {"second_quarter": before, "last_quarter": after, "growth": ratio(after, before),
            "peak": max(megabytes)}  # fmt: skip


def ratio(first: float, second: float) -> float | None:
    """How many times as much."""
    return round(first / second, 3) if second else None


async def run(options: argparse.Namespace) -> int:
    """Against the server that is there, or one of our own."""
    with contextlib.ExitStack() as stack:
        if options.url:
            served = Served(options.url, options.pid)
        else:
            served = stack.enter_context(started(options.serve.split()))
        async with http_client(served.url, options.api_key) as client:
            return await Load(served, client, options).run()


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--leaving", type=float, default=0.2, help="share that disconnect early")
    parser.add_argument("--invalid", type=float, default=0.1, help="share that must be refused")
    parser.add_argument("--stuck", type=float, default=300, help="seconds until one is called so")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=10, help="seconds between lines")
    parser.add_argument("--serve", default="smollm2-135m --dtype fp32", help="for graft serve")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--pid", type=int, help="its process, for its memory")
    parser.add_argument("--api-key")
    parser.add_argument("--out", type=Path)
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
