"""Server-sent events over a job: one after the other, an error as the last, `[DONE]` at the end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from graft.decode.stats import clock
from graft.server.failures import as_body, as_refusal
from graft.server.worker import Job, Told, Worker

log = logging.getLogger("graft.server")
MARGIN = 5  # seconds more than a job may take, for its last words
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Events = AsyncIterator[dict[str, Any]]


class JobResponse(StreamingResponse):
    """Streams a job's events and closes it whatever happens, also if nobody ever listens: a client
    that does not read is left when the job's time is up."""

    def __init__(self, worker: Worker, job: Job, events: Events, *, named: bool = False) -> None:
        lines = _lines(_then(events, lambda: worker.close(job)), named=named)
        super().__init__(lines, 200, HEADERS, "text/event-stream")
        self._worker, self._job = worker, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        left = max(0.0, self._job.deadline - clock()) + MARGIN
        try:
            async with asyncio.timeout(left):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            log.warning("a client that did not read its answer in time was left")
        finally:
            self._worker.close(self._job)


async def _then(events: Events, end: Callable[[], None]) -> Events:
    """The events, and what to do after the last: before a client is told that there are no more."""
    async for event in events:
        yield event
    end()


async def _lines(events: Events, *, named: bool) -> AsyncIterator[str]:
    """`named` events say their type in a line of its own and need no [DONE]."""
    try:
        async for event in events:
            name = f"event: {event['type']}\n" if named else ""
            yield f"{name}data: {_json(event)}\n\n"
    except Exception as error:
        body = as_body(as_refusal(error))
        if named:
            yield f"event: error\ndata: {_json({**body['error'], 'type': 'error'})}\n\n"
        else:
            yield f"data: {_json(body)}\n\n"
    if not named:
        yield "data: [DONE]\n\n"


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


async def finished(worker: Worker, job: Job, request: Request) -> list[Told] | None:
    """Wait for a job's end and close it; None if the client went away before."""
    ending = asyncio.create_task(job.finished())
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await ending if ending.done() else None
    finally:
        ending.cancel()
        leaving.cancel()
        worker.close(job)


async def _left(request: Request) -> None:
    """Return when the client has gone; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
