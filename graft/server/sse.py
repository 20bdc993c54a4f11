"""Server-sent events of a job; an error is the last event, `[DONE]` the end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from graft.decode.stats import clock
from graft.server.errors import as_api_error, as_body
from graft.server.worker import Job, PromptEvent, Worker

log = logging.getLogger("graft.server")
COMMENT_SECONDS = 2.0  # between two comments before the first token
MARGIN = 5  # seconds after the deadline to send the last events
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Events = AsyncIterator[dict[str, Any]]


class JobResponse(StreamingResponse):
    """Streams a job's events and always closes the job, after its deadline even if the client does
    not read."""

    def __init__(self, worker: Worker, job: Job, events: Events, *, named: bool = False) -> None:
        lines = _lines(_closing(events, lambda: worker.close(job)), named=named)
        lines = _with_comments(lines, job)
        super().__init__(lines, 200, HEADERS, "text/event-stream")
        self._worker, self._job = worker, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        seconds = max(0.0, self._job.deadline - clock()) + MARGIN
        try:
            async with asyncio.timeout(seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            log.warning("closed a stream that the client did not read in time")
        finally:
            self._worker.close(self._job)


async def _closing(events: Events, close: Callable[[], None]) -> Events:
    """The events; calls `close` after the last, before the end of the stream is sent."""
    async for event in events:
        yield event
    close()


async def _lines(events: Events, *, named: bool) -> AsyncIterator[str]:
    """`named` events have a line with their type and no [DONE]."""
    try:
        async for event in events:
            name = f"event: {event['type']}\n" if named else ""
            yield f"{name}data: {_json(event)}\n\n"
    except Exception as error:
        body = as_body(as_api_error(error))
        if named:
            yield f"event: error\ndata: {_json({**body['error'], 'type': 'error'})}\n\n"
        else:
            yield f"data: {_json(body)}\n\n"
    if not named:
        yield "data: [DONE]\n\n"


async def _with_comments(lines: AsyncIterator[str], job: Job) -> AsyncIterator[str]:
    """The lines; before the first token also comments, so that clients and proxies see progress."""
    while job.last is None and not job.done:
        following = asyncio.ensure_future(anext(lines, None))
        try:
            while not (await asyncio.wait({following}, timeout=COMMENT_SECONDS))[0]:
                yield f": {job.progress}\n\n"
        finally:
            following.cancel()
        line = following.result()
        if line is None:
            return
        yield line
    async for line in lines:
        yield line


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


async def finished(worker: Worker, job: Job, request: Request) -> list[PromptEvent] | None:
    """Wait for a job and close it; None if the client disconnects before."""
    ending = asyncio.create_task(job.finished())
    disconnected = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({ending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        return await ending if ending.done() else None
    finally:
        ending.cancel()
        disconnected.cancel()
        worker.close(job)


async def _disconnected(request: Request) -> None:
    """Return when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
