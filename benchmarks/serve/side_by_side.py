"""Running servers side by side: the same requests at the same concurrency, in turns.

    python -m benchmarks.serve.side_by_side write --out requests.jsonl.gz \\
        --requests rag=spec_bench:SPEC_BENCH:64:rag --requests edits=code_edit:REFACTOR:48
    python -m benchmarks.serve.side_by_side run --requests requests.jsonl.gz --out rows.jsonl \\
        --server plain=http://127.0.0.1:8001 --server drafting=http://127.0.0.1:8002

Servers answer OpenAI's API and may be vLLM, SGLang or `graft serve`. They should run on the same
accelerator, with prefix caches off. A cell is a set of requests at a concurrency; each repeat has
its own requests, and servers take it in turns, in the opposite order in every other repeat. The
requests come from several processes, so that reading a stream does not limit the servers. Ratios
are to the first server, by cell; greedy answers are compared with its answers to one client alone.
"""

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import rows_file
from benchmarks.script import ended
from benchmarks.serve.client import Streamed, http_client, served_model, stream
from benchmarks.serve.load import percentiles
from benchmarks.suites.task import read_suite, select
from graft.bench.result_file import ResultFile
from graft.errors import InputError

PROCESSES = 8  # of clients
LEAST = 8  # requests of a cell
WAVES = 2  # requests of a cell for each client


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and further fields of its requests."""

    name: str
    url: str
    model: str = ""

    @classmethod
    def read(cls, text: str) -> "Server":
        """NAME=URL."""
        name, _, url = text.partition("=")
        if not name or not url:
            raise argparse.ArgumentTypeError(f"takes NAME=URL, not {text!r}")
        return cls(name, url.rstrip("/"))


def main() -> None:
    """Write requests, or send them."""
    options = _options()
    if options.command == "write":
        with gzip.open(options.out, "wt", encoding="utf-8") as file:
            for each in options.requests:
                file.writelines(json.dumps(row) + "\n" for row in written(each))
        return
    sets: dict[str, list[list[dict]]] = defaultdict(list)
    if not options.requests.exists():
        raise InputError(f"no file {options.requests}; `write` makes it")
    with gzip.open(options.requests, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            sets[row["set"]].append(row["messages"])
    servers = [replace(each, model=model_of(each)) for each in options.server]
    clients = ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"))
    with clients, rows_file("side_by_side", options) as results:
        run(servers, sets, options, results, clients)


def written(text: str) -> Iterator[dict[str, Any]]:
    """Requests of NAME=SUITE:DATA:COUNT[:CATEGORY,...], from all of the suite."""
    name, _, source = text.partition("=")
    try:
        suite, data, count, *categories = source.split(":")
    except ValueError:
        raise InputError(
            f"--requests takes NAME=SUITE:DATA:COUNT[:CATEGORY,...], not {text!r}"
        ) from None
    chosen = tuple(categories[0].split(",")) if categories else ()
    for each in select(read_suite(suite, Path(data)), limit=None, split="all", categories=chosen)[
        : int(count)
    ]:
        content = each.content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        yield {"set": name, "messages": messages}


def model_of(server: Server) -> str:
    """The first model of a server."""

    async def ask() -> str:
        async with http_client(server.url, None) as client:
            return await served_model(client, None)

    return asyncio.run(ask())


def run(
    servers: list[Server],
    sets: dict[str, list[list[dict]]],
    options: argparse.Namespace,
    results: ResultFile,
    clients: ProcessPoolExecutor,
) -> None:
    """All cells; a line with the ratios after each."""
    for server in servers:  # compiles, and starts the processes
        for at_once in options.concurrency:
            first = [
                requests[i % len(requests)] for requests in sets.values() for i in range(at_once)
            ]
            _answers(server, first[: 2 * at_once], at_once, 16, clients)
    alone: dict[str, str] = {}  # answers of the first server to one client, by request
    for at_once in options.concurrency:
        for name, requests in sets.items():
            speeds: dict[str, list[float]] = {server.name: [] for server in servers}
            same: dict[str, list[bool]] = {server.name: [] for server in servers}
            for repeat in range(options.repeats):
                chosen = _turn(requests, max(LEAST, WAVES * at_once), repeat)
                for server in servers if repeat % 2 == 0 else servers[::-1]:
                    seconds, answers = _answers(
                        server, chosen, at_once, options.max_tokens, clients
                    )
                    texts = [each.text for each in answers]
                    if at_once == 1 and server is servers[0]:
                        alone |= zip(map(json.dumps, chosen), texts, strict=True)
                    equal = [
                        alone[key] == text
                        for key, text in zip(map(json.dumps, chosen), texts, strict=True)
                        if key in alone
                    ]
                    row = figures(answers, seconds)
                    speeds[server.name].append(row["tokens_per_second"])
                    same[server.name] += equal
                    cell = {"set": name, "concurrency": at_once, "repeat": repeat}
                    same_row = {"compared": len(equal), "same": sum(equal)}
                    results.row(cell | {"server": server.name} | row | same_row)
            print(name, at_once, _summary(speeds, same), flush=True)


def _turn(requests: list[list[dict]], count: int, repeat: int) -> list[list[dict]]:
    """The requests of a repeat, none twice: the next ones, from the first again after the last."""
    count = min(count, len(requests))
    return [requests[(repeat * count + i) % len(requests)] for i in range(count)]


def _answers(
    server: Server,
    chosen: list[list[dict]],
    at_once: int,
    max_tokens: int,
    clients: ProcessPoolExecutor,
) -> tuple[float, list[Streamed]]:
    """Seconds of the whole cell, and the answers in order."""
    _forget(server)
    bodies = [
        {
            "model": server.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        for messages in chosen
    ]
    shares = min(at_once, PROCESSES)
    began = time.perf_counter()
    parts = list(
        clients.map(
            answer_share,
            [server] * shares,
            [bodies[i::shares] for i in range(shares)],
            [len(range(i, at_once, shares)) for i in range(shares)],
        )
    )
    seconds = time.perf_counter() - began
    answers = [parts[i % shares][i // shares] for i in range(len(bodies))]
    for each in answers:
        if each.error is not None or each.busy is not None:
            raise InputError(f"{server.name} failed: {each.error or 'too many requests'}")
    return seconds, answers


def answer_share(server: Server, bodies: list[dict], at_once: int) -> list[Streamed]:
    """In a process of its own: so many requests at once, the answers in order."""

    async def all_of_them() -> list[Streamed]:
        places = asyncio.Semaphore(at_once)
        async with http_client(server.url, None) as client:

            async def answer(body: dict) -> Streamed:
                async with places:
                    return await stream(client, body)

            return await asyncio.gather(*map(answer, bodies))

    return asyncio.run(all_of_them())


def _forget(server: Server) -> None:
    """Empty the caches of a server that can (SGLang, whose NGRAM also knows earlier answers)."""
    with httpx.Client(timeout=30) as client:
        client.post(f"{server.url}/flush_cache")


def figures(answers: list[Streamed], seconds: float) -> dict[str, Any]:
    """Of a cell; between tokens: a request's later time over its later tokens."""
    tokens = sum(each.tokens for each in answers)
    paces = [
        (each.seconds - each.pieces[0]) / (each.tokens - 1)
        for each in answers
        if each.pieces and each.tokens > 1
    ]
    return {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": round(seconds, 4),
        "tokens_per_second": round(tokens / seconds, 1),
        "first_token_ms": percentiles(each.pieces[0] for each in answers if each.pieces),
        "per_token_ms": percentiles(paces),
    }


def _summary(speeds: dict[str, list[float]], same: dict[str, list[bool]]) -> str:
    first = next(iter(speeds.values()))
    return "; ".join(
        f"{name} {statistics.mean(values):.0f} tok/s "
        f"{ratio(values, first):.2f}, same {sum(same[name])}/{len(same[name])}"
        for name, values in speeds.items()
    )


def ratio(values: Iterable[float], base: Iterable[float]) -> float:
    """Geometric mean of paired ratios."""
    return statistics.geometric_mean(a / b for a, b in zip(values, base, strict=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="requests of suites")
    write.add_argument(
        "--requests", action="append", required=True, metavar="NAME=SUITE:DATA:COUNT[:CATEGORIES]"
    )
    write.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    send = commands.add_parser("run", help="send them")
    send.add_argument("--requests", type=Path, required=True, help="what `write` wrote")
    send.add_argument(
        "--server", action="append", required=True, type=Server.read, metavar="NAME=URL"
    )
    send.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    send.add_argument("--repeats", type=int, default=2)
    send.add_argument("--max-tokens", type=int, default=128)
    send.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended(main))
