"""Server-sent events over a job: one after the other, an error as the last, `[DONE]` at the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from graft.server.failures import as_body, as_refusal
from graft.server.worker import Job, Told, Worker

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Events = AsyncIterator[dict[str, Any]]


class JobResponse(StreamingResponse):
    """Streams a job's events and closes it whatever happens, also if nobody ever listens."""

    def __init__(self, worker: Worker, job: Job, events: Events, *, named: bool = False) -> None:
        super().__init__(_lines(events, named=named), 200, HEADERS, "text/event-stream")
        self._worker, self._job = worker, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._worker.close(self._job)


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
