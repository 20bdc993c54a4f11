"""Corpora under load: uploads, deletions and questions of several keys, and a kill -9 midway.

Every client has one of the keys and sends one request after the other: questions about a corpus of
its key, uploads, deletions, lists, requests for a corpus of another key or with a wrong key, and
some that disconnect. Midway the server is killed and started again. Each acknowledged upload or
deletion must hold, also after the kill; no response may have a secret of another key; no status
may be a server's error. One row of counts; exit status 1 if anything was wrong.

    python -m benchmarks.serve.corpora --minutes 10 --out results/serve_corpora.jsonl
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import rows_file
from benchmarks.serve.client import PATH, http_client, stream
from benchmarks.serve.server import free_port, fresh_home, settled, wait_until_ready

KEYS = ("alder", "birch", "cedar", "dogwood")
NAMES = tuple(f"house{number}" for number in range(6))  # of corpora; a key may have 8
SECRET = re.compile(rf"\b({'|'.join(KEYS)})\d{{6}}\b")
DOWN = (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)
QUESTIONS = ("Which code opens the door?", "Repeat the document.", "Who has the key of the lift?")


@dataclass(slots=True)
class Ledger:
    """What the server acknowledged: the version of every corpus, 0 for none. `open` has the
    versions of changes without a response, which may have happened or not."""

    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    open: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def allowed(self, key: str, name: str) -> set[int]:
        """The versions that the server may have."""
        return {self.versions.get((key, name), 0), *self.open.get((key, name), ())}


@dataclass(slots=True)
class Load:
    """The clients of one run."""

    url: str
    draw: random.Random
    ledger: Ledger = field(default_factory=Ledger)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    down: bool = False
    until: float = 0.0
    changing: set[tuple[str, str]] = field(default_factory=set)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    next_version: int = 1

    async def client(self, number: int) -> None:
        """Send requests until the end."""
        key = KEYS[number % len(KEYS)]
        actions: list[tuple[Callable[[httpx.AsyncClient, str], Awaitable[None]], int]] = [
            (self._ask, 50), (self._leave, 8), (self._upload, 15), (self._delete, 9),
            (self._list, 8), (self._trespass, 6), (self._without_key, 4),
        ]  # fmt: skip
        kinds, weights = zip(*actions, strict=True)
        async with http_client(self.url, key) as http:
            while time.monotonic() < self.until:
                if self.down:
                    await asyncio.sleep(0.2)
                    continue
                [action] = self.draw.choices(kinds, weights)
                try:
                    await action(http, key)
                except DOWN as error:
                    self._unreachable(f"{action.__name__}: {type(error).__name__}")

    async def check(self) -> None:
        """Compare all corpora with the ledger, and settle what was open."""
        for key in KEYS:
            async with http_client(self.url, key) as http:
                listed = {each["id"] for each in (await http.get("/v1/corpora")).json()["data"]}
                if strange := listed - {*NAMES, f"only-{key}"}:
                    self.wrong.append(f"{key} has {strange}")
                for name in NAMES:
                    version = await self._version(http, key, name) if name in listed else 0
                    self.counts["checked"] += 1
                    if version not in self.ledger.allowed(key, name):
                        expected = self.ledger.allowed(key, name)
                        self.wrong.append(f"{key}/{name} is {version}, not one of {expected}")
                    self.ledger.versions[key, name] = version
        self.ledger.open.clear()

    async def _version(self, http: httpx.AsyncClient, key: str, name: str) -> int:
        """The version of a corpus, by the title of its document in a prompt."""
        while True:
            answer = await http.post(PATH, json=_question(name, QUESTIONS[0], 1))
            if answer.status_code != 429:
                break
            await asyncio.sleep(1)
        self._look(answer, key)
        [passage] = answer.json()["documents"]["passages"]
        return int(passage["document"].rpartition("-")[2])

    async def _ask(self, http: httpx.AsyncClient, key: str) -> None:
        name = self.draw.choice(NAMES)
        allowed, changes = self.ledger.allowed(key, name), self.changes[key, name]
        answer = await http.post(PATH, json=_question(name, self.draw.choice(QUESTIONS), 16))
        self._look(answer, key, 404)
        if answer.status_code == 404 and 0 not in allowed and changes == self.changes[key, name]:
            self.wrong.append(f"{key}/{name} is not found")

    async def _leave(self, http: httpx.AsyncClient, key: str) -> None:
        """Disconnect after the first token."""
        body = _question(self.draw.choice(NAMES), QUESTIONS[1], 64)
        found = await stream(http, body, disconnect_after=1)
        if found.error and not found.error.startswith("404"):
            self._unreachable(found.error)
        self.counts["disconnected"] += found.disconnected

    async def _upload(self, http: httpx.AsyncClient, key: str) -> None:
        name, version = self.draw.choice(NAMES), self.next_version
        self.next_version += 1
        secret = f"{key}{self.draw.randrange(10**6):06}"
        lines = [f"The code {secret} opens door {n} of {name}." for n in range(8)]
        document = {"title": f"{key}-{name}-{version}", "text": "\n".join(lines)}
        send = {"url": "/v1/corpora", "json": {"id": name, "documents": [document]}}
        await self._change(http.post, send, (key, name), version)

    async def _delete(self, http: httpx.AsyncClient, key: str) -> None:
        name = self.draw.choice(NAMES)
        await self._change(http.delete, {"url": f"/v1/corpora/{name}"}, (key, name), 0)

    async def _change(
        self,
        send: Callable[..., Awaitable[httpx.Response]],
        request: dict[str, Any],
        place: tuple[str, str],
        version: int,
    ) -> None:
        """Change a corpus that no other client is changing, and note what was acknowledged."""
        if place in self.changing:
            return
        self.changing.add(place)
        self.changes[place] += 1
        self.ledger.open.setdefault(place, set()).add(version)
        try:
            answer = await send(**request)
            if answer.status_code == 200:
                self.ledger.versions[place] = version
            self.ledger.open.pop(place, None)
            self.counts["uploads" if version else "deletions"] += answer.status_code == 200
            self._look(answer, place[0], *([] if version else [404]))
        finally:
            self.changing.discard(place)

    async def _list(self, http: httpx.AsyncClient, key: str) -> None:
        self._look(await http.get("/v1/corpora"), key)

    async def _trespass(self, http: httpx.AsyncClient, key: str) -> None:
        """Name a corpus that only another key has."""
        other = self.draw.choice([each for each in KEYS if each != key])
        name = f"only-{other}"
        body = {"id": name, "documents": [f"the code is {other}000000"]}
        headers = {"Authorization": f"Bearer {other}"}
        self._look(await http.post("/v1/corpora", json=body, headers=headers), other)
        self._look(await http.post(PATH, json=_question(name, "?", 4)), key, 404, only=True)
        self._look(await http.delete(f"/v1/corpora/{name}"), key, 404, only=True)
        await http.delete(f"/v1/corpora/{name}", headers=headers)

    async def _without_key(self, http: httpx.AsyncClient, key: str) -> None:
        wrong = {"Authorization": "Bearer nobody"}
        self._look(await http.get("/v1/corpora", headers=wrong), key, 401, only=True)

    def _look(self, answer: httpx.Response, key: str, *statuses: int, only: bool = False) -> None:
        """Note a status that is not expected, and texts of other keys."""
        self.counts[f"status {answer.status_code}"] += 1
        expected = {429, *statuses} if only else {200, 429, *statuses}
        if answer.status_code not in expected:
            self.wrong.append(
                f"{answer.request.url.path}: {answer.status_code} {answer.text[:300]}"
            )
        if others := {found for found in SECRET.findall(answer.text) if found != key}:
            self.wrong.append(f"{key} sees texts of {others}: {answer.text[:300]}")

    def _unreachable(self, what: str) -> None:
        """A broken connection is expected only while the server is killed."""
        self.counts["unreachable"] += 1
        if not self.down:
            self.wrong.append(what)


def _question(corpus: str, question: str, tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}],
        "corpora": [corpus],
        "max_tokens": tokens,
    }


@contextlib.contextmanager
def server(model: str, port: int, environment: dict[str, str]) -> Iterator[subprocess.Popen]:
    """`graft serve` with the keys, once it is ready; killed at the end of the block."""
    command = [sys.executable, "-m", "graft", "serve", model, "--port", str(port), "--head", "none"]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def run(options: argparse.Namespace, environment: dict[str, str]) -> Load:
    """Load, kill, check, load, check."""
    port = free_port()
    load = Load(f"http://127.0.0.1:{port}", random.Random(options.seed))
    begin = time.monotonic()
    with contextlib.ExitStack() as first:
        process = first.enter_context(server(options.model, port, environment))
        load.until = time.monotonic() + 60 * options.minutes
        clients = [asyncio.create_task(load.client(n)) for n in range(options.clients)]
        await asyncio.sleep(60 * options.minutes * load.draw.uniform(0.4, 0.6))
        load.down = True
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        load.counts["seconds before the kill"] = round(time.monotonic() - begin)
        while load.changing:  # the last broken connections
            await asyncio.sleep(0.1)
    restart = contextlib.ExitStack()
    await asyncio.to_thread(restart.enter_context, server(options.model, port, environment))
    with restart:
        await load.check()
        load.down = False
        await asyncio.gather(*clients)
        await load.check()
        async with http_client(load.url, KEYS[0]) as http:
            if left := await settled(http, 30):
                load.wrong.append(f"{left} requests never end")
    return load


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, rows_file("serve_corpora", options) as file:
        environment = {**os.environ, "GRAFT_HOME": str(fresh_home(Path(name)))}
        load = asyncio.run(run(options, environment | {"GRAFT_API_KEY": ",".join(KEYS)}))
        row = {"counts": dict(load.counts), "wrong": len(load.wrong), "first": load.wrong[:10]}
        file.row(row)
    sys.stdout.write(f"{row}\n")
    sys.exit(bool(load.wrong))


if __name__ == "__main__":
    main()
