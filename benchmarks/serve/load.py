"""Many clients at once: each sends one request after the other until all are sent."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.serve.client import Streamed, is_refused, stream
from benchmarks.serve.prompts import INVALID
from benchmarks.serve.settings import ServeSettings

if TYPE_CHECKING:
    import httpx

SHARES = (50, 90, 99)
PAGE = 4096
FAILURES = 5  # that are written down


@dataclass(slots=True)
class Tally:
    """What happened at one concurrency."""

    answers: list[Streamed] = field(default_factory=list)
    different: int = 0
    disconnected: int = 0
    refused: int = 0
    wrongly_answered: int = 0  # invalid requests that were not refused
    full: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Load:
    """Requests to one server; `expected` are its answers to a client alone, if they are known."""

    client: "httpx.AsyncClient"
    settings: ServeSettings
    bodies: Sequence[dict[str, Any]]
    expected: Sequence[str] = ()

    async def at(self, concurrency: int) -> dict[str, Any]:
        """The figures of one concurrency."""
        tally, numbers = Tally(), count()
        began = time.perf_counter()
        workers = [self._work(tally, numbers, began, concurrency, i) for i in range(concurrency)]
        await asyncio.gather(*workers)
        return figures(tally, time.perf_counter() - began) | self._memory()

    async def _work(
        self, tally: Tally, numbers: "count[int]", began: float, clients: int, seed: int
    ) -> None:
        """One client."""
        draw = random.Random(seed)
        while self._more(number := next(numbers), began, clients):
            place, draw_value = number % len(self.bodies), draw.random()
            if draw_value < self.settings.invalid:
                await self._invalid(tally, place, draw)
            elif draw_value < self.settings.invalid + self.settings.disconnect:
                answer = await stream(self.client, self.bodies[place], draw.randrange(1, 6))
                await self._count(tally, place, answer)
            else:
                await self._count(tally, place, await stream(self.client, self.bodies[place]))

    def _more(self, number: int, began: float, clients: int) -> bool:
        """Whether there is a request of this number: every client sends at least one."""
        if self.settings.seconds is not None:
            return time.perf_counter() - began < self.settings.seconds
        return number < max(self.settings.requests, clients)

    async def _count(self, tally: Tally, place: int, answer: Streamed) -> None:
        if answer.busy is not None:
            tally.full += 1
            await asyncio.sleep(answer.busy)
        elif answer.error is not None:
            tally.failures.append(answer.error)
        elif answer.disconnected:
            tally.disconnected += 1
        else:
            tally.answers.append(answer)
            tally.different += bool(self.expected) and answer.text != self.expected[place]

    async def _invalid(self, tally: Tally, place: int, draw: random.Random) -> None:
        import httpx

        try:
            refused = await is_refused(self.client, self.bodies[place] | draw.choice(INVALID))
        except httpx.HTTPError as error:
            tally.failures.append(f"{type(error).__name__}: {error}")
            return
        tally.full += refused is None
        tally.refused += refused is True
        tally.wrongly_answered += refused is False

    def _memory(self) -> dict[str, float]:
        """Of the server's process, where it is known and Linux tells."""
        if self.settings.pid is None:
            return {}
        try:
            pages = int(Path(f"/proc/{self.settings.pid}/statm").read_text().split()[1])
        except (OSError, ValueError):
            return {}
        return {"server_mb": round(pages * PAGE / 1e6, 1)}


def figures(tally: Tally, seconds: float) -> dict[str, Any]:
    """Times in milliseconds; between tokens: a request's later time over its later tokens."""
    answers = [each for each in tally.answers if each.pieces]
    paces = [
        (each.seconds - each.pieces[0]) / (each.tokens - 1) for each in answers if each.tokens > 1
    ]
    tokens = sum(each.tokens for each in answers)
    return {
        "completed": len(tally.answers),
        "seconds": round(seconds, 3),
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 2),
        "requests_per_second": round(len(tally.answers) / seconds, 3),
        "first_token_ms": percentiles(each.pieces[0] for each in answers),
        "per_token_ms": percentiles(paces),
        "between_pieces_ms": percentiles(gap for each in answers for gap in each.gaps),
        "request_ms": percentiles(each.seconds for each in answers),
        "different": tally.different,
        "disconnected": tally.disconnected,
        "refused": tally.refused,
        "wrongly_answered": tally.wrongly_answered,
        "full": tally.full,
        "failed": len(tally.failures),
        "failures": tally.failures[:FAILURES],
    }


def percentiles(seconds: Iterable[float]) -> dict[str, float] | None:
    """By nearest rank, in milliseconds; None of nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    return {
        f"p{share}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 2)
        for share in SHARES
    }
