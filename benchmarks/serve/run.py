"""Put a server under every load that a file does not have yet."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.serve.client import http_client, served_model, stream
from benchmarks.serve.load import Load
from benchmarks.serve.prompts import bodies
from benchmarks.serve.settings import ServeSettings
from graft.bench.measure import Progress
from graft.bench.result_file import ResultFile, new_header
from graft.errors import InputError

if TYPE_CHECKING:
    import httpx

SETTINGS = ServeSettings


def run(settings: ServeSettings, file: ResultFile, progress: Progress) -> bool:
    """False where requests failed or outputs differ."""
    return asyncio.run(_run(settings, file, progress))


async def _run(settings: ServeSettings, file: ResultFile, progress: Progress) -> bool:
    left = [n for n in settings.concurrency if not file.results.has({"concurrency": n})]
    progress.begin(len(settings.concurrency), len(settings.concurrency) - len(left))
    if left:
        async with http_client(settings.url, settings.api_key) as client:
            model = await served_model(client, settings.model)
            load = Load(client, settings, bodies(settings, model))
            progress.show("warm-up")
            load.expected = await _expected(load)
            file.begin(new_header(settings.kind, settings.header(model)))
            for concurrency in left:
                progress.show(f"concurrency {concurrency}")
                file.row({"concurrency": concurrency, **await load.at(concurrency)})
                progress.advance()
    return all(map(succeeded, file.results.rows))


async def _expected(load: Load) -> list[str]:
    """The outputs for one client of this server, or of the reference; without --check only the
    first request is sent, as a warm-up."""
    settings = load.settings
    if settings.reference:
        await _alone(load.client, load.bodies[:1])
        async with http_client(settings.reference, settings.api_key) as client:
            model = await served_model(client, None)
            return await _alone(client, [{**body, "model": model} for body in load.bodies])
    texts = await _alone(load.client, load.bodies if settings.check else load.bodies[:1])
    return texts if settings.check else []


async def _alone(client: "httpx.AsyncClient", requests: Sequence[dict[str, Any]]) -> list[str]:
    texts = []
    for body in requests:
        answer = await stream(client, body)
        if answer.error is not None:
            raise InputError(f"the server refuses the requests: {answer.error}")
        texts.append(answer.text)
    return texts


def succeeded(row: dict[str, Any]) -> bool:
    """Whether all requests of a load did."""
    return not row["different"] + row["wrongly_answered"] + row["failed"] and row["completed"] > 0
