"""The thread that steps the engine, and the jobs it runs for the event loop.

A job is one HTTP request: one or several prompts and their answers. The thread steps while there
are jobs and hands the new tokens of each step to the event loop in one callback. Other threads
prepare prompts (templates, tokens, grammars), so neither the loop nor the steps wait for that.
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
from typing import TYPE_CHECKING, Protocol, TypeVar

from graft.decode.engine import Engine
from graft.decode.output import Result, TokenEvent
from graft.decode.prepared_request import PreparedRequest
from graft.decode.stats import clock
from graft.decode.stream import Stream
from graft.server.errors import BUSY, SERVER_ERROR, ApiError
from graft.server.usage import request_line

if TYPE_CHECKING:
    from graft.server.metrics import Metrics

log = logging.getLogger("graft.server")
PREPARE_THREADS = 2
SPREAD = 0.8  # share of the time between two steps over which the tokens of a step are sent
MAX_RETRY_AFTER = 60  # seconds
IDLE_SECONDS = 0.01  # between two looks at an answer that makes no step now
PromptEvent = tuple[int, TokenEvent]  # with the index of the prompt
Value = TypeVar("Value")


class Running(Protocol):
    """What a job needs of a `Stream`; adaptive answers (`adaptive.py`) have it, too."""

    @property
    def done(self) -> bool:
        """Whether no more events will become available."""

    @property
    def error(self) -> BaseException | None:
        """The error that ended it."""

    @property
    def result(self) -> Result:
        """The answer so far."""

    @property
    def prefill_progress(self) -> tuple[int, int]:
        """How many prompt tokens are in the KV cache, and how many the prompt has."""

    def ready(self) -> bool:
        """Whether an event is available, or the end."""

    def take_available(self) -> list[TokenEvent]:
        """All available events, without waiting."""

    def close(self) -> None:
        """End it; any thread may call it."""


@dataclass(slots=True, eq=False)
class Job:
    """The answers to one HTTP request, as the event loop sees them; `stopped` and `cut_off` belong
    to the worker's thread."""

    streams: Sequence[Running]
    sequences: int
    deadline: float
    metrics: "Metrics"
    since: float = field(default_factory=clock)
    last: float | None = None  # time of the last tokens
    done: bool = False
    error: BaseException | None = None
    stopped: bool = False  # no further step is run for it
    cut_off: ApiError | None = None  # the error at the deadline, if it is not the timeout
    _steps: deque[list[PromptEvent]] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def results(self) -> list[list[Result]]:
        """For each prompt its answers so far."""
        results = [stream.result for stream in self.streams]
        return [list(each.choices or (each,)) for each in results]

    @property
    def progress(self) -> str:
        """Of the prefill, in words."""
        counts = [stream.prefill_progress for stream in self.streams]
        done, tokens = (sum(column) for column in zip(*counts, strict=True))
        return f"prefill: {done} of {tokens} prompt tokens" if done else "queued"

    def add(self, events: list[PromptEvent], error: BaseException | None, *, done: bool) -> None:
        """Add the tokens of a step."""
        if events:
            now = clock()
            if self.last is None:
                self.metrics.first_token(now - self.since)
            else:
                self.metrics.more_tokens(len(events), now - self.last)
            self.last = now
            self._steps.append(events)
        elif done and self.last is None:
            self.last = clock()
        self.done, self.error = self.done or done, self.error or error
        self._changed.set()

    async def finished(self) -> list[PromptEvent]:
        """All tokens, once the job is done."""
        while not self.done:
            await self._wait(None)
        if self.error:
            raise self.error
        return [event for step in self._steps for event in step]

    async def tokens(self) -> AsyncIterator[PromptEvent]:
        """Each token by itself. The tokens of one step are spread over the time until the next step
        is expected; when it or the end has come, the remaining ones follow at once."""
        step, before = 0.0, clock()
        while not (self.done and not self._steps):
            if not self._steps:
                await self._wait(None)
                step, before = clock() - before, clock()
                continue
            events = self._steps.popleft()
            for number, event in enumerate(events, 1):
                yield event
                if number < len(events) and not self._steps and not self.done:
                    await self._wait(SPREAD * step / len(events))
        if self.error:
            raise self.error

    async def _wait(self, seconds: float | None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


@dataclass(frozen=True, slots=True)
class _Update:
    """What a step changed for one job."""

    job: Job
    events: list[PromptEvent]
    error: BaseException | None
    done: bool


class Worker:
    """Runs an engine for an event loop."""

    def __init__(
        self, engine: Engine, metrics: "Metrics", *, max_waiting: int, timeout: float
    ) -> None:
        self.engine, self._metrics = engine, metrics
        self._max_sequences, self._timeout = engine.max_batch + max_waiting, timeout
        self._sequences = 0  # queued and running
        self._mean_seconds = 1.0  # of a job, for Retry-After
        self._jobs: list[Job] = []
        self._wake = threading.Condition()
        self._closing: ApiError | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._prepare_pool = ThreadPoolExecutor(PREPARE_THREADS, "graft-prepare")
        self._index_pool = ThreadPoolExecutor(1, "graft-index")

    def start(self) -> None:
        """Start the thread, for the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="graft-worker", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are accepted."""
        return bool(self._thread and self._thread.is_alive() and not self._closing)

    async def open(
        self, prepare: Callable[[], Sequence[PreparedRequest]], *, sequences: int, streaming: bool
    ) -> Job:
        """A new job, which the caller must close; ApiError if the queue is full. `prepare` runs in
        another thread."""
        return await self.open_streams(lambda: self._submit(prepare(), streaming), sequences)

    async def open_streams(self, start: Callable[[], Sequence[Running]], sequences: int) -> Job:
        """See `open`; `start` submits the requests."""
        self._reserve(sequences)
        try:
            streams = await self.run_in_thread(start)
            job = Job(streams, sequences, clock() + self._timeout, self._metrics)
        except BaseException:
            self._sequences -= sequences
            raise
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()
        return job

    async def run_in_thread(self, action: Callable[[], Value]) -> Value:
        """Run something slow outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._prepare_pool, action)

    async def run_indexing(self, action: Callable[[], Value]) -> Value:
        """Run something very slow, one after the other; no request waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._index_pool, action)

    def close(self, job: Job) -> None:
        """Remove the job; its KV cache rows are freed now, or after the step in flight."""
        with self._wake:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        self._sequences -= job.sequences
        for stream in job.streams:
            stream.close()
        self._mean_seconds += (clock() - job.since - self._mean_seconds) / 8
        self._metrics.finished(job)
        log.info("%s", request_line(job.results))

    def drain(self, seconds: float) -> None:
        """Accept no new jobs, and end running ones after so many seconds."""
        self._closing = ApiError(
            "the server is shutting down", 503, SERVER_ERROR, code="shutting_down"
        )
        with self._wake:
            for job in self._jobs:
                job.deadline, job.cut_off = min(job.deadline, clock() + seconds), self._closing

    async def stop(self) -> None:
        """End all jobs and the thread."""
        self.drain(0.0)
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        for pool in (self._prepare_pool, self._index_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _reserve(self, sequences: int) -> None:
        if self._closing:
            raise self._closing
        if self._sequences + sequences > self._max_sequences:
            waiting = max(0, self._sequences - self.engine.max_batch)
            seconds = self._mean_seconds * (1 + waiting / self.engine.max_batch)
            raise ApiError(
                "the queue is full; try again later",
                429,
                BUSY,
                code="queue_full",
                retry_after=min(MAX_RETRY_AFTER, max(1, math.ceil(seconds))),
            )
        self._sequences += sequences

    def _submit(self, requests: Sequence[PreparedRequest], streaming: bool) -> list[Stream]:  # noqa: FBT001
        streams: list[Stream] = []
        try:
            for request in requests:
                streams.append(self.engine.submit(request, streaming=streaming))
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
            error = None if self._waits(jobs) else self._step()
            self._publish([self._update(job, error) for job in jobs])
        self._publish([_Update(job, [], self._closing, done=True) for job in self._unfinished()])

    def _unfinished(self) -> list[Job]:
        return [job for job in self._jobs if not job.stopped]

    def _waits(self, jobs: list[Job]) -> bool:
        """Whether the engine has nothing to do, after a short wait: adaptive answers retrieve."""
        if self.engine.running or self.engine.waiting:
            return False
        if not any(stream.ready() for job in jobs for stream in job.streams):
            with self._wake:
                self._wake.wait(IDLE_SECONDS)
        return True

    def _step(self) -> BaseException | None:
        """One step for all jobs. An error here ends all of them."""
        try:
            self.engine.loop.lock.exclusive(self.engine.loop.step)
        except Exception as error:
            log.exception("a step failed")
            return error
        return None

    def _update(self, job: Job, failure: BaseException | None) -> _Update:
        events = [
            (number, event)
            for number, stream in enumerate(job.streams)
            for event in stream.take_available()
        ]
        error = failure or next((each.error for each in job.streams if each.error), None)
        done = all(stream.done for stream in job.streams)
        if not done and not error and clock() > job.deadline:
            error = job.cut_off or ApiError(
                "the request took too long and was cancelled", 504, SERVER_ERROR, code="timeout"
            )
        if error:
            for stream in job.streams:
                stream.close()
        return _Update(job, events, error, done or error is not None)

    def _publish(self, updates: list[_Update]) -> None:
        """Hand all updates to the event loop in one callback."""
        updates = [each for each in updates if each.events or each.done]
        for each in updates:
            each.job.stopped = each.job.stopped or each.done
        if updates and self._loop:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_deliver, updates)


def _deliver(updates: list[_Update]) -> None:
    for each in updates:
        each.job.add(each.events, each.error, done=each.done)
