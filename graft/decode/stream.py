"""The tokens of an answer as they come, for loops and for `async` loops."""

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from graft.decode.sequence import Result, Sequence, TokenEvent
from graft.decode.step_lock import StepLock


class Steps(Protocol):
    """What a stream needs of the engine."""

    turns: StepLock

    def advance(self) -> None:
        """One forward for everybody."""

    def sweep(self) -> None:
        """Let go of what has ended."""


class Stream:
    """Iterate to get the token events; `result` is complete when they are through.

    Streams of one engine may be read by several threads, and run in one batch. One that nobody
    reads pauses after a while.
    """

    def __init__(self, engine: Steps, sequences: list[Sequence]) -> None:
        self._engine, self._sequences = engine, sequences

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> TokenEvent:
        self._engine.step_lock.until(self.ready, self._engine.advance)
        event = self.take()
        if event is None:
            raise StopIteration
        return event

    def ready(self) -> bool:
        """Whether `take` has something to say: an event, or that there are no more."""
        return any(s.events for s in self._sequences) or self.done

    def step(self) -> None:
        """At most one step of the engine towards the next event, by this thread or another."""
        self._engine.step_lock.once(self.ready, self._engine.advance)

    @property
    def prompt_read(self) -> tuple[int, int]:
        """How many tokens of the prompt are in the cache, and how many it has."""
        first = self._sequences[0]
        count = first.stats.prompt_tokens
        return min(first.extent.total if first.extent else 0, count), count

    def take(self) -> TokenEvent | None:
        """The next event that is there; None after the last. What went wrong comes after it."""
        for sequence in self._sequences:
            if sequence.events:
                return sequence.events.popleft()
        self.close()
        self._raise()
        return None

    def taken(self) -> list[TokenEvent]:
        """All events that are there; nothing is waited for."""
        events = []
        for sequence in self._sequences:
            with suppress(IndexError):  # there are no more, or another thread has closed it
                while True:
                    events.append(sequence.events.popleft())
        return events

    @property
    def done(self) -> bool:
        """Whether nothing more will come besides the events that are there."""
        return all(sequence.done for sequence in self._sequences)

    @property
    def error(self) -> BaseException | None:
        """What went wrong."""
        return next((each.error for each in self._sequences if each.error), None)

    def _raise(self) -> None:
        if error := self.error:
            raise error

    def finish(self) -> Result:
        """The complete answer, without reading its events."""
        for sequence in self._sequences:
            sequence.patience = None
        self._engine.step_lock.until(lambda: self.done, self._engine.advance)
        self._raise()
        return self.result

    def close(self) -> None:
        """Stop here and free the rows; safe to call at any time, by any thread, also twice."""
        for sequence in self._sequences:
            sequence.cancel()
        self._engine.step_lock.between(self._engine.sweep)  # else the step under way does it

    def __del__(self) -> None:
        for sequence in self._sequences:  # no more than that: this may run anywhere, at any time
            sequence.cancel()

    @property
    def result(self) -> Result:
        """The answer so far."""
        first, *others = [sequence.result() for sequence in self._sequences]
        return replace(first, choices=(first, *others)) if others else first


class AsyncStream:
    """`async for` over the token events; `result` as in `Stream`. Steps run beside the loop."""

    def __init__(self, stream: Stream, executor: Executor) -> None:
        self._stream, self._executor = stream, executor

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> TokenEvent:
        loop = asyncio.get_running_loop()
        try:
            while not self._stream.ready():
                await loop.run_in_executor(self._executor, self._stream.step)
        except asyncio.CancelledError:
            self.close()
            raise
        event = self._stream.take()
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """Stop here and free the rows, at once or with the end of the step under way."""
        self._stream.close()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()

    @property
    def result(self) -> Result:
        """The answer so far."""
        return self._stream.result
