"""Put a server under every load that a file does not have yet."""

import asyncio

from graft.bench.journal import Journal
from graft.bench.runner import Watch
from graft.bench.serve.client import http_client, served_model, stream
from graft.bench.serve.load import Load
from graft.bench.serve.prompts import bodies
from graft.bench.serve.settings import ServeSettings
from graft.errors import InputError


def run(settings: ServeSettings, journal: Journal, watch: Watch) -> bool:
    """Whether everything went as it should."""
    return asyncio.run(_run(settings, journal, watch))


async def _run(settings: ServeSettings, journal: Journal, watch: Watch) -> bool:
    left = [each for each in settings.concurrency if not journal.done(each)]
    watch.begin(len(settings.concurrency), len(settings.concurrency) - len(left))
    if left:
        async with http_client(settings.url, settings.api_key) as client:
            model = await served_model(client, settings.model)
            load = Load(client, settings, bodies(settings, model))
            watch.turn("warming up")
            load.expected = await _alone(load)
            journal.begin({"model": model, **settings.fixed})
            for concurrency in left:
                watch.turn(f"{concurrency} at a time")
                journal.add({"concurrency": concurrency, **await load.at(concurrency)})
                watch.advance()
    return all(map(_went_well, journal.rows))


async def _alone(load: Load) -> list[str]:
    """What one client gets, one request after the other: of all, or of the first to warm up."""
    texts = []
    for body in load.bodies if load.settings.check else load.bodies[:1]:
        told = await stream(load.client, body)
        if told.error is not None:
            raise InputError(f"the server refuses the suite's requests: {told.error}")
        texts.append(told.text)
    return texts if load.settings.check else []


def _went_well(row: dict) -> bool:
    bad = row["different"] + row["wrongly_answered"] + row["failed"]
    return not bad and row["completed"] > 0
