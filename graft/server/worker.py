"""The one thread that advances the engine, and the jobs it does for the event loop.

A job is one HTTP request: one or several prompts and their answers. The thread makes one step after
another while there are jobs, and after each step tells the event loop in one message what became
final. Prompts are prepared (templates, tokens, grammars) by other threads, so neither the loop nor
the steps wait for them.
"""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from graft.decode.engine import Engine
from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.decode.stats import clock
from graft.decode.stream import Stream
from graft.server.failures import BROKEN, BUSY, Refusal

log = logging.getLogger("graft.server")
PREPARING = 2  # threads
SPREAD = 0.8  # of the time between two steps, over which the tokens of one are spread
LONGEST_RETRY = 60  # seconds
Told = tuple[int, TokenEvent]  # whose, by the number of the prompt
Value = TypeVar("Value")


class Observer(Protocol):
    """Who counts what happens to jobs."""

    def first(self, seconds: float) -> None:
        """A job has its first token."""

    def more(self, tokens: int, seconds: float) -> None:
        """A job has more tokens, so many seconds after the last ones."""

    def ended(self, job: "Job") -> None:
        """A job is through, or was given up."""


@dataclass(slots=True, eq=False)
class Job:
    """The answers to one HTTP request, as the event loop sees them; `over` and `cut_off` belong to
    the worker's thread, which is always a little ahead."""

    streams: list[Stream]
    places: int  # of the queue, one for each answer
    deadline: float
    observer: Observer
    since: float = field(default_factory=clock)
    last: float | None = None  # when tokens came
    done: bool = False
    error: BaseException | None = None
    over: bool = False  # no step is made for it any more
    cut_off: Refusal | None = None  # why it may go on no longer than to its deadline
    _told: deque[list[Told]] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def results(self) -> list[list[Result]]:
        """For each prompt its answers so far."""
        results = [stream.result for stream in self.streams]
        return [list(each.choices or (each,)) for each in results]

    def hear(self, told: list[Told], error: BaseException | None, *, done: bool) -> None:
        """What a step brought."""
        if told:
            now = clock()
            if self.last is None:
                self.observer.first(now - self.since)
            else:
                self.observer.more(len(told), now - self.last)
            self.last = now
            self._told.append(told)
        elif done and self.last is None:
            self.last = clock()
        self.done, self.error = self.done or done, self.error or error
        self._news.set()

    async def finished(self) -> list[Told]:
        """Wait for the end; everything that was told."""
        while not self.done:
            await self._next_news(None)
        if self.error:
            raise self.error
        return [each for step in self._told for each in step]

    async def tokens(self) -> AsyncIterator[Told]:
        """Each token by itself. Those of one step are spread over the time until the next one is
        expected; as soon as it is there, or the end, nothing is held back."""
        step, before = 0.0, clock()
        while not (self.done and not self._told):
            if not self._told:
                await self._next_news(None)
                step, before = clock() - before, clock()
                continue
            told = self._told.popleft()
            for place, each in enumerate(told):
                yield each
                if place + 1 < len(told) and not self._told and not self.done:
                    await self._next_news(SPREAD * step / len(told))
        if self.error:
            raise self.error

    async def _next_news(self, seconds: float | None) -> None:
        self._news.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)


class Worker:
    """Runs an engine for an event loop."""

    def __init__(
        self, engine: Engine, observer: Observer, *, max_waiting: int, timeout: float
    ) -> None:
        self.engine, self._observer = engine, observer
        self._most, self._timeout = engine.max_batch + max_waiting, timeout
        self._taken = 0  # places
        self._usual = 1.0  # seconds a job takes, for those who have to come back
        self._jobs: list[Job] = []
        self._wake = threading.Condition()
        self._closing: Refusal | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preparing = ThreadPoolExecutor(PREPARING, thread_name_prefix="graft-prepare")
        self._indexing = ThreadPoolExecutor(1, thread_name_prefix="graft-index")

    def start(self) -> None:
        """Begin to work for the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="graft-worker", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return bool(self._thread and self._thread.is_alive() and not self._closing)

    async def open(
        self, prepare: Callable[[], Sequence[PreparedRequest]], *, places: int, heard: bool
    ) -> Job:
        """A new job, or a Refusal where there is no room for it; `prepare` runs beside the loop.

        Whoever gets a job closes it, whatever happens."""
        self._take(places)
        try:
            streams = await self.beside(lambda: self._submit(prepare(), heard=heard))
            job = Job(streams, places, clock() + self._timeout, self._observer)
        except BaseException:
            self._taken -= places
            raise
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()
        return job

    async def beside(self, action: Callable[[], Value]) -> Value:
        """Do something that takes a while without holding up the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._preparing, action)

    async def behind(self, action: Callable[[], Value]) -> Value:
        """Do something that takes long, one after the other: no request waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._indexing, action)

    def close(self, job: Job) -> None:
        """Nobody waits for the job any more: its rows are free at once, or after this step."""
        with self._wake:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        self._taken -= job.places
        for stream in job.streams:
            stream.close()
        self._usual += (clock() - job.since - self._usual) / 8
        self._observer.ended(job)

    def drain(self, seconds: float) -> None:
        """Take nothing new, and cut off what is not through in so many seconds."""
        self._closing = Refusal("the server is shutting down", 503, BROKEN, code="shutting_down")
        with self._wake:
            for job in self._jobs:
                job.deadline, job.cut_off = min(job.deadline, clock() + seconds), self._closing

    async def stop(self) -> None:
        """Give up what is left, and end the thread."""
        self.drain(0.0)
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        for executor in (self._preparing, self._indexing):
            executor.shutdown(wait=False, cancel_futures=True)

    def _take(self, places: int) -> None:
        if self._closing:
            raise self._closing
        if self._taken + places > self._most:
            queued = max(0, self._taken - self.engine.max_batch)
            seconds = self._usual * (1 + queued / self.engine.max_batch)
            raise Refusal(
                "the queue is full; try again later",
                429,
                BUSY,
                code="queue_full",
                retry_after=min(LONGEST_RETRY, max(1, math.ceil(seconds))),
            )
        self._taken += places

    def _submit(self, requests: Sequence[PreparedRequest], *, heard: bool) -> list[Stream]:
        streams: list[Stream] = []
        try:
            for request in requests:
                streams.append(self.engine.submit(request, streaming=heard))
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return streams

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopped or self._unfinished())
                if self._stopped:
                    break
                jobs = self._unfinished()
            error = self._step()
            self._tell([(job, *self._outcome(job, error)) for job in jobs])
        self._tell([(job, [], self._closing, True) for job in self._unfinished()])

    def _unfinished(self) -> list[Job]:
        return [job for job in self._jobs if not job.over]

    def _step(self) -> BaseException | None:
        """One step for everybody. What fails here is nobody's in particular: all of them end."""
        try:
            self.engine.loop.lock.exclusive(self.engine.loop.step)
        except Exception as error:
            log.exception("a step failed")
            return error
        return None

    def _outcome(
        self, job: Job, failure: BaseException | None
    ) -> tuple[list[Told], BaseException | None, bool]:
        """What to tell of a job after a step."""
        told = [
            (number, event)
            for number, stream in enumerate(job.streams)
            for event in stream.take_available()
        ]
        error = failure or next((each.error for each in job.streams if each.error), None)
        done = all(stream.done for stream in job.streams)
        if not done and not error and clock() > job.deadline:
            error = job.cut_off or _timed_out()
        if error:
            for stream in job.streams:
                stream.close()
        return told, error, done or error is not None

    def _tell(self, outcomes: list[tuple[Job, list[Told], BaseException | None, bool]]) -> None:
        """All in one message; a job that is through is not stepped for again."""
        news = [each for each in outcomes if each[1] or each[3]]
        for job, _, _, done in news:
            job.over = job.over or done
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            if news:
                self._loop.call_soon_threadsafe(_hear, news)


def _hear(news: list[tuple[Job, list[Told], BaseException | None, bool]]) -> None:
    for job, told, error, done in news:
        job.hear(told, error, done=done)


def _timed_out() -> Refusal:
    return Refusal("the request took too long and was given up", 504, BROKEN, code="timeout")
