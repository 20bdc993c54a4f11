"""A server for a benchmark: started as a process of its own, or one that runs already."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import httpx
import psutil

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


def free_port() -> int:
    """A port nobody listens at now."""
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


@dataclass(slots=True)
class Answer:
    """What came of one streamed request; `status` is 0 where an error came inside the stream."""

    status: int = 200
    error: str = ""
    text: str = ""
    tokens: int = 0
    first: float | None = None  # seconds to the first token
    between: list[float] = field(default_factory=list)  # and from one to the next
    left: bool = False
    retry_after: float = 0.0


async def stream(client: httpx.AsyncClient, body: dict, leave_after: int | None = None) -> Answer:
    """Ask a chat for a stream, and hang up after some pieces if that is wanted."""
    answer, began, pieces, last = Answer(), time.perf_counter(), [], None
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=request) as response:
        answer.status = response.status_code
        if answer.status != 200:
            answer.error = (await response.aread())[:200].decode(errors="replace")
            answer.retry_after = float(response.headers.get("retry-after", 0))
            return answer
        async for event in _events(response):
            if "error" in event:
                answer.status, answer.error = 0, event["error"]["message"]
                return answer
            answer.tokens = (event.get("usage") or {}).get("completion_tokens", answer.tokens)
            piece = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if not piece:
                continue
            now = time.perf_counter()
            if last is None:
                answer.first = now - began
            else:
                answer.between.append(now - last)
            last = now
            pieces.append(piece)
            if leave_after is not None and len(pieces) >= leave_after:
                answer.left = True
                return answer
    answer.text = "".join(pieces)
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[dict]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def connect(url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client for as many requests at once as one likes."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(None, connect=30),
        limits=httpx.Limits(max_connections=None),
    )


async def model_of(client: httpx.AsyncClient) -> str:
    """The name of the model that is there."""
    return (await client.get("/v1/models")).json()["data"][0]["id"]


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
