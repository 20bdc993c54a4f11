"""Running servers side by side: the same requests at the same concurrency, in turns.

    python -m benchmarks.serve.side_by_side write --out requests.jsonl.gz \\
        --requests rag=spec_bench:SPEC_BENCH:64:rag --requests edits=code_edit:REFACTOR:48
    python -m benchmarks.serve.side_by_side run --requests requests.jsonl.gz --out rows.jsonl \\
        --server plain=http://127.0.0.1:8001 --server drafting=http://127.0.0.1:8002

Servers answer OpenAI's API and may be vLLM, SGLang or `graft serve`. They should run on the same
accelerator, with prefix caches off. A cell is a set of requests at a concurrency; each repeat
starts at another request, and servers take it in turns, in the opposite order in every other
repeat. Clients run in several processes, so that reading a stream does not limit the servers, are
connected before the time of a cell begins, and take requests from one queue. Ratios are to the
first server, by cell; greedy answers are compared with its answers to one client alone. Where a
cell needs more requests than its set has, requests repeat, and a drafter that keeps earlier answers
finds theirs: write enough of them.
"""

import argparse
import asyncio
import gzip
import json
import math
import statistics
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from benchmarks.rows import rows_file
from benchmarks.script import ended
from benchmarks.serve.client import Streamed, http_client, served_model
from benchmarks.serve.clients import Clients
from benchmarks.serve.load import percentiles
from benchmarks.suites.task import read_suite, select
from graft.bench.result_file import ResultFile, Row
from graft.errors import InputError

PROCESSES = 8  # of clients
LEAST = 16  # requests of a cell
WARM_UP = 16  # tokens of an answer before the first cell


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
    check(options)
    sets = read_sets(options.requests)
    servers = [replace(each, model=model_of(each)) for each in options.server]
    clients = Clients(min(PROCESSES, max(options.concurrency)))
    with clients, rows_file("side_by_side", options) as results:
        Comparison(servers, sets, options, clients).run(results)


def written(text: str) -> Iterator[dict[str, Any]]:
    """Requests of NAME=SUITE:DATA:COUNT[:CATEGORY,...], from all of the suite."""
    name, _, source = text.partition("=")
    try:
        suite, data, wanted, *categories = source.split(":")
        number = int(wanted)
    except ValueError:
        raise InputError(
            f"--requests takes NAME=SUITE:DATA:COUNT[:CATEGORY,...], not {text!r}"
        ) from None
    chosen = tuple(categories[0].split(",")) if categories else ()
    suite_requests = read_suite(suite, Path(data))
    for each in select(suite_requests, limit=None, split="all", categories=chosen)[:number]:
        content = each.content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        yield {"set": name, "messages": messages}


def check(options: argparse.Namespace) -> None:
    """InputError for numbers below 1 and for servers of the same name."""
    for name in ("concurrency", "repeats", "waves", "max_tokens"):
        given = getattr(options, name)
        if min(given if isinstance(given, list) else [given]) < 1:
            raise InputError(f"--{name.replace('_', '-')} takes 1 or more")
    names = [server.name for server in options.server]
    if len(set(names)) < len(names):
        raise InputError(f"--server takes names that differ, not {', '.join(names)}")


def read_sets(path: Path) -> dict[str, list[list[dict]]]:
    """The messages of the requests, by the names of their sets."""
    sets: dict[str, list[list[dict]]] = defaultdict(list)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for row in map(json.loads, file):
                sets[row["set"]].append(row["messages"])
    except FileNotFoundError:
        raise InputError(f"no file {path}; `write` makes it") from None
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is not what `write` writes ({error})") from None
    if not sets:
        raise InputError(f"{path} has no requests")
    return sets


def model_of(server: Server) -> str:
    """The first model of a server."""

    async def ask() -> str:
        async with http_client(server.url, None) as client:
            return await served_model(client, None)

    return asyncio.run(ask())


@dataclass(frozen=True, slots=True)
class Cell:
    """A set of requests at a concurrency, once."""

    name: str
    at_once: int
    repeat: int

    def __str__(self) -> str:
        return f"{self.name} {self.at_once} repeat {self.repeat}"


@dataclass(slots=True)
class Comparison:
    """Servers and their requests; `alone` has answers of the first server to one client."""

    servers: list[Server]
    sets: dict[str, list[list[dict]]]
    options: argparse.Namespace
    clients: Clients
    alone: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def run(self, results: ResultFile) -> None:
        """All cells, repeat by repeat; a line after each, and for each over its repeats."""
        began, limit = monotonic(), self.options.limit_seconds
        left_out: list[str] = []
        measured: dict[tuple[str, int], list[dict[str, Row]]] = defaultdict(list)
        self.warm_up()
        repeats = range(self.options.repeats)
        for repeat, at_once, name in product(repeats, self.options.concurrency, self.sets):
            cell = Cell(name, at_once, repeat)
            if left_out or (limit is not None and monotonic() - began >= limit):
                left_out.append(str(cell))
                continue
            rows = self.measure(cell, results)
            measured[name, at_once].append(rows)
            print(f"{cell}: {self.summary([rows])}", flush=True)
        if left_out:
            print(f"left out after {limit:g} s: {', '.join(left_out)}")
        for (name, at_once), repeated in measured.items():
            print(f"{name} {at_once}, repeats {len(repeated)}: {self.summary(repeated)}")
        if self.failed:
            raise InputError("; ".join(self.failed))

    def warm_up(self) -> None:
        """Let servers compile for each concurrency."""
        for server, at_once in product([*self.servers], self.options.concurrency):
            first = [
                requests[i % len(requests)]
                for requests in self.sets.values()
                for i in range(at_once)
            ]
            if server in self.servers:
                self.answers(server, first[: 2 * at_once], at_once, WARM_UP)

    def measure(self, cell: Cell, results: ResultFile) -> dict[str, Row]:
        """The rows of a cell by server."""
        rows = {}
        number = max(LEAST, self.options.waves * cell.at_once)
        chosen = requests_of(self.sets[cell.name], number, cell.repeat)
        keys = [json.dumps(messages) for messages in chosen]
        for server in self.servers[:: 1 if cell.repeat % 2 == 0 else -1]:
            found = self.answers(server, chosen, cell.at_once, self.options.max_tokens)
            if found is None:
                continue
            seconds, answers = found
            texts = [each.text for each in answers]
            if cell.at_once == 1 and server is self.servers[0]:
                self.alone |= zip(keys, texts, strict=True)
            equal = [
                self.alone[key] == text
                for key, text in zip(keys, texts, strict=True)
                if key in self.alone
            ]
            place = {"set": cell.name, "concurrency": cell.at_once, "repeat": cell.repeat}
            same = {"compared": len(equal), "same": sum(equal)}
            rows[server.name] = place | {"server": server.name} | figures(answers, seconds) | same
            results.row(rows[server.name])
        return rows

    def answers(
        self, server: Server, chosen: list[list[dict]], at_once: int, max_tokens: int
    ) -> tuple[float, list[Streamed]] | None:
        """Seconds of all the requests, and the answers in order. A server that fails is left out
        from now on, unless the others are compared with it."""
        try:
            return self.answered(server, chosen, at_once, max_tokens)
        except InputError as error:
            if server is self.servers[0]:
                raise
            self.servers.remove(server)
            self.failed.append(str(error))
            print(f"{error}; the others go on", flush=True)
            return None

    def answered(
        self, server: Server, chosen: list[list[dict]], at_once: int, max_tokens: int
    ) -> tuple[float, list[Streamed]]:
        """Seconds and answers; InputError if a server gives none."""
        forget(server)
        common = {"model": server.model, "max_tokens": max_tokens, "temperature": 0}
        bodies = [common | {"messages": messages} for messages in chosen]
        seconds, answers = self.clients.answers(server.url, bodies, at_once)
        for each in answers:
            if each.error is not None or each.busy is not None:
                raise InputError(f"{server.name} failed: {each.error or 'too many requests'}")
        if not any(each.tokens for each in answers):
            raise InputError(f"{server.name} answered {len(answers)} requests without a token")
        return seconds, answers

    def summary(self, repeats: list[dict[str, Row]]) -> str:
        """By server: tokens per second, their ratio to the first server's, and equal answers."""
        parts = []
        for server in self.servers:
            rows = [each[server.name] for each in repeats if server.name in each]
            speeds = [row["tokens_per_second"] for row in rows]
            first = [each[self.servers[0].name]["tokens_per_second"] for each in repeats]
            ratios = [speed / base for speed, base in zip(speeds, first, strict=True)]
            same, compared = (sum(row[key] for row in rows) for key in ("same", "compared"))
            parts.append(
                f"{server.name} {mean_and_range(speeds, 0)} tok/s {mean_and_range(ratios, 2)}, "
                f"same {same}/{compared}"
            )
        return "; ".join(parts)


def requests_of(requests: list[list[dict]], number: int, repeat: int) -> list[list[dict]]:
    """So many requests, in turn; no two repeats start at the same one while others are left."""
    step = next(n for n in count(number) if math.gcd(n, len(requests)) == 1)
    return [requests[(repeat * step + i) % len(requests)] for i in range(number)]


def mean_and_range(values: list[float], digits: int) -> str:
    """The geometric mean, and between which values, where they differ."""
    mean, low, high = (
        f"{value:.{digits}f}"
        for value in (statistics.geometric_mean(values), min(values), max(values))
    )
    return mean if low == high else f"{mean} ({low} to {high})"


def forget(server: Server) -> None:
    """Empty the caches of a server that can (SGLang, whose NGRAM also knows earlier answers)."""
    try:
        httpx.post(f"{server.url}/flush_cache", timeout=30)
    except httpx.HTTPError as error:
        raise InputError(f"{server.name} failed: {error or type(error).__name__}") from None


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
    send.add_argument(
        "--waves",
        type=int,
        default=4,
        help=f"requests of a cell per client, in all {LEAST} or more",
    )
    send.add_argument("--max-tokens", type=int, default=128)
    send.add_argument(
        "--limit-seconds", type=float, help="begin no further cell so long after the start"
    )
    send.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(ended(main))
