"""The tokens of an answer as they are generated, for loops and for `async` loops."""

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace

from graft.decode.loop import DecodeLoop
from graft.decode.output import Result, TokenEvent
from graft.decode.sequence import Sequence


class Stream:
    """Iterate over it to get the `TokenEvent`s of an answer; `result` is complete after the last.

    Streams of one engine run in one batch and may be read by several threads. A stream with too
    many unread events pauses. An error of the request is raised after its last event.
    """

    def __init__(self, loop: DecodeLoop, sequences: list[Sequence]) -> None:
        self._loop, self._sequences = loop, sequences

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> TokenEvent:
        self._loop.lock.until(self.ready, self._loop.step)
        event = self.take_next()
        if event is None:
            raise StopIteration
        return event

    def ready(self) -> bool:
        """Whether an event is available, or the stream has ended."""
        return any(s.events for s in self._sequences) or self.done

    def step(self) -> None:
        """Make at most one step towards the next event, or wait for another thread's step."""
        self._loop.lock.once(self.ready, self._loop.step)

    @property
    def prefill_progress(self) -> tuple[int, int]:
        """How many prompt tokens are in the KV cache, and how many the prompt has."""
        first = self._sequences[0]
        count = first.stats.prompt_tokens
        return min(first.extent.total if first.extent else 0, count), count

    def take_next(self) -> TokenEvent | None:
        """The next available event; None, or the request's error, after the last one."""
        for sequence in self._sequences:
            if sequence.events:
                return sequence.events.popleft()
        self.close()
        self._raise()
        return None

    def take_available(self) -> list[TokenEvent]:
        """All available events, without waiting."""
        events = []
        for sequence in self._sequences:
            with suppress(IndexError):  # empty, or closed by another thread
                while True:
                    events.append(sequence.events.popleft())
        return events

    @property
    def done(self) -> bool:
        """Whether no more events will become available."""
        return all(sequence.done for sequence in self._sequences)

    @property
    def error(self) -> BaseException | None:
        """The error that ended the request."""
        return next((each.error for each in self._sequences if each.error), None)

    def _raise(self) -> None:
        if error := self.error:
            raise error

    def finish(self) -> Result:
        """Wait for the complete answer without reading its events."""
        for sequence in self._sequences:
            sequence.max_unread = None
        self._loop.lock.until(lambda: self.done, self._loop.step)
        self._raise()
        return self.result

    def close(self) -> None:
        """End the answer and free its KV cache rows; any thread may call it, also twice."""
        for sequence in self._sequences:
            sequence.cancel()
        # If a step is running, that step collects them.
        self._loop.lock.try_exclusive(self._loop.collect_finished)

    def __del__(self) -> None:
        for sequence in self._sequences:  # takes no lock: the collector may run in any thread
            sequence.cancel()

    @property
    def result(self) -> Result:
        """The answer so far."""
        first, *others = [sequence.result() for sequence in self._sequences]
        return replace(first, choices=(first, *others)) if others else first


class AsyncStream:
    """`Stream` for `async for`; steps run in a thread beside the event loop."""

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
        event = self._stream.take_next()
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """End the answer and free its KV cache rows, at once or after the step that is running."""
        self._stream.close()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()

    @property
    def result(self) -> Result:
        """The answer so far."""
        return self._stream.result
