"""A server for a benchmark: started as a process of its own, or one that runs already."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from graft.home import home

READY_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Served:
    """Where it answers; the process is known only where it was started here."""

    url: str
    pid: int | None = None

    @property
    def megabytes(self) -> float | None:
        """Its resident memory."""
        return round(psutil.Process(self.pid).memory_info().rss / 1e6, 1) if self.pid else None


@contextlib.contextmanager
def started(arguments: list[str]) -> Iterator[Served]:
    """`graft serve` with these arguments at a free port, until the end of the block."""
    port = free_port()
    command = [sys.executable, "-m", "graft", "serve", *arguments, "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ)
    try:
        served = Served(f"http://127.0.0.1:{port}", process.pid)
        wait_until_ready(served.url, process)
        yield served
    finally:
        process.terminate()
        process.wait(60)


def fresh_home(folder: Path) -> Path:
    """A home of Graft without caches, but with the models and costs of this machine."""
    own = folder / "home"
    own.mkdir()
    for kept in ("models", "checkpoints", "costs", "verified"):
        if (home() / kept).is_dir():
            (own / kept).symlink_to(home() / kept)
    return own


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_until_ready(url: str, process: subprocess.Popen) -> None:
    """Until the server takes requests."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        time.sleep(0.5)
    raise SystemExit(f"the server at {url} does not start")


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    """What `/metrics` says, without labels."""
    lines = (await client.get("/metrics")).text.splitlines()
    return {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if "{" in line}


async def settled(client: httpx.AsyncClient, seconds: float) -> float:
    """How many sequences are still there when all clients have gone; waits a little for none."""
    until = time.monotonic() + seconds
    while True:
        now = await gauges(client)
        there = now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"]
        if not there or time.monotonic() > until:
            return there
        await asyncio.sleep(0.2)
