"""Clients in processes of their own, whose connections stay open from cell to cell."""

import asyncio
import contextlib
import signal
import time
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import TYPE_CHECKING, Any, Self

from benchmarks.serve.client import Streamed, http_client, stream
from graft.errors import InputError

if TYPE_CHECKING:
    import httpx

Numbered = list[tuple[int, Streamed]]  # answers with the places of their requests


class Clients:
    """Clients of any server, spread evenly over so many processes."""

    def __init__(self, processes: int) -> None:
        context = get_context("spawn")
        self._next = context.Value("q", 0)  # request, for all processes
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(processes):
            pipe, other = context.Pipe()
            process = context.Process(target=_serve_cells, args=(other, self._next), daemon=True)
            process.start()
            other.close()
            self._pipes.append(pipe)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

    def answers(
        self, url: str, bodies: list[dict[str, Any]], at_once: int
    ) -> tuple[float, list[Streamed]]:
        """Seconds until the last answer is complete, and the answers in order.

        The time begins when every client is connected. Each takes the next request that is left.
        """
        self._next.value = 0
        pipes = self._pipes[:at_once]
        try:
            for i, pipe in enumerate(pipes):
                pipe.send((url, bodies, len(range(i, at_once, len(pipes)))))
            for pipe in pipes:
                pipe.recv()  # connected
            began = time.perf_counter()  # one clock for all processes of a machine
            for pipe in pipes:
                pipe.send(None)
            parts: list[tuple[float, Numbered]] = [pipe.recv() for pipe in pipes]
        except (EOFError, OSError):
            raise InputError("a process of clients ended before its answers did") from None
        answers = dict(each for _, part in parts for each in part)
        return max(ended for ended, _ in parts) - began, [answers[i] for i in range(len(bodies))]


def _serve_cells(pipe: Connection, following: "Synchronized[int]") -> None:
    """Run in a process: the clients of each cell, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    with contextlib.suppress(EOFError, BrokenPipeError):
        asyncio.run(_cells(pipe, following))


async def _cells(pipe: Connection, following: "Synchronized[int]") -> None:
    opened = cache(lambda url: http_client(url, None))
    while True:
        url, bodies, clients = pipe.recv()
        http = opened(url)
        connected = (http.get("/v1/models") for _ in range(clients))
        await asyncio.gather(*connected, return_exceptions=True)  # requests report what fails
        pipe.send(None)
        pipe.recv()
        parts = await asyncio.gather(*(_client(http, bodies, following) for _ in range(clients)))
        pipe.send((time.perf_counter(), [each for part in parts for each in part]))


async def _client(
    http: "httpx.AsyncClient", bodies: list[dict[str, Any]], following: "Synchronized[int]"
) -> Numbered:
    """The answers of one client."""
    answers: Numbered = []
    while (number := _take(following)) < len(bodies):
        answers.append((number, await stream(http, bodies[number])))
    return answers


def _take(following: "Synchronized[int]") -> int:
    """The number of the next request, counted up."""
    with following.get_lock():
        number = following.value
        following.value += 1
    return number
