"""The worker thread and its jobs, with a tiny model."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from serving import Held
from tiny import tiny_engine

from graft.decode.prepared_request import PreparedRequest, as_prepared
from graft.decode.request import Request
from graft.draft.drafter import NoDraft
from graft.errors import GraftError
from graft.models.arena import OutOfRowsError
from graft.sampling import SamplingParams
from graft.server import sse
from graft.server.errors import ApiError
from graft.server.worker import Worker

PROMPTS = ["the end and the answer", "in an inn on the river", "where another one was then"]
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
LONG = SamplingParams(max_tokens=1900, ignore_eos=True)


class Counts:
    """Metrics that count."""

    def __init__(self):
        self.firsts, self.tokens, self.jobs = 0, 0, []

    def first_token(self, seconds):
        self.firsts += 1

    def more_tokens(self, tokens, seconds):
        self.tokens += tokens

    def finished(self, job):
        self.jobs.append(job)


@asynccontextmanager
async def working(engine, *, max_waiting=64, timeout=60.0):
    worker = Worker(engine, Counts(), max_waiting=max_waiting, timeout=timeout)
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def ask(worker, request, *, streaming=True):
    sequences = as_prepared(request).request.params.n
    return await worker.open(lambda: [request], sequences=sequences, streaming=streaming)


async def whole(worker, request, *, streaming=False):
    """The token ids of the first answer, and its events."""
    job = await ask(worker, request, streaming=streaming)
    try:
        events = await job.finished()
        return job.results[0][0].token_ids, events
    finally:
        worker.close(job)


def rows_in_use(engine):
    engine.loop.lock.exclusive(engine.loop.collect_finished)
    return engine.running + engine.waiting, engine.model.arena.usage


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(max_batch=2)


@pytest.mark.parametrize("streaming", [True, False])
def test_concurrent_jobs_equal_single_ones(engine, streaming):
    requests = [Request(prompt, GREEDY, draft) for prompt in PROMPTS for draft in ("auto", "plain")]

    async def together():
        async with working(engine) as worker:
            return await asyncio.gather(
                *(whole(worker, each, streaming=streaming) for each in requests)
            )

    answers = run(together())
    assert [ids for ids, _ in answers] == [engine.generate(each).token_ids for each in requests]
    if streaming:
        assert all([event.token for _, event in events] == ids for ids, events in answers)


def test_a_stream_yields_single_tokens_in_order(engine):
    async def streamed():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], GREEDY, "copy"))
            try:
                return [event.token async for _, event in job.tokens()]
            finally:
                worker.close(job)

    assert run(streamed()) == engine.generate(PROMPTS[0], GREEDY).token_ids


def test_a_closed_job_frees_its_rows_while_others_continue(engine):
    async def leave():
        async with working(engine) as worker:
            staying = asyncio.create_task(whole(worker, Request(PROMPTS[1], LONG)))
            job = await ask(worker, Request(PROMPTS[0], LONG))
            async for _ in job.tokens():
                break
            worker.close(job)
            return (await staying)[0]

    assert run(leave()) == engine.generate(PROMPTS[1], LONG).token_ids
    assert rows_in_use(engine) == (0, 0.0)


def test_a_job_cancelled_while_opening_frees_everything(engine):
    async def leave():
        async with working(engine, max_waiting=0) as worker:
            for _ in range(5):
                opening = asyncio.create_task(ask(worker, Request(PROMPTS[0], LONG)))
                await asyncio.sleep(0)
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
            return await whole(worker, Request(PROMPTS[0], GREEDY))

    assert run(leave())[0] == engine.generate(PROMPTS[0], GREEDY).token_ids
    assert rows_in_use(engine) == (0, 0.0)


def test_a_full_queue_raises_with_retry_after(monkeypatch):
    engine = tiny_engine(max_batch=1)
    held = Held(engine, monkeypatch)

    async def crowd():
        async with working(engine, max_waiting=1) as worker:
            first, second = [await ask(worker, Request(PROMPTS[0], GREEDY)) for _ in range(2)]
            with pytest.raises(ApiError) as raised:
                await ask(worker, Request(PROMPTS[1], GREEDY))
            worker.close(first)
            third = await ask(worker, Request(PROMPTS[1], GREEDY))
            held.let()
            await asyncio.gather(second.finished(), third.finished())
            for job in (second, third):
                worker.close(job)
            return raised.value

    error = run(crowd())
    assert (error.status, error.code) == (429, "queue_full")
    assert error.retry_after >= 1


def test_n_answers_count_as_n_sequences():
    async def crowd():
        async with working(tiny_engine(max_batch=2), max_waiting=1) as worker:
            with pytest.raises(ApiError, match="full"):
                await ask(worker, Request(PROMPTS[0], SamplingParams(n=4)))
            await whole(worker, Request(PROMPTS[0], SamplingParams(n=3, max_tokens=5)))

    run(crowd())


def test_an_invalid_prompt_frees_its_queue_slot(engine):
    async def invalid():
        async with working(engine, max_waiting=0) as worker:
            for _ in range(4):
                with pytest.raises(GraftError, match="empty"):
                    await ask(worker, Request(" ", GREEDY))
            return (await whole(worker, Request(PROMPTS[0], GREEDY)))[0]

    assert run(invalid()) == engine.generate(PROMPTS[0], GREEDY).token_ids


def test_a_job_over_its_timeout_is_cancelled(engine):
    async def late():
        async with working(engine, timeout=0.05) as worker:
            job = await ask(worker, Request(PROMPTS[0], LONG))
            try:
                with pytest.raises(ApiError, match="too long") as raised:
                    await job.finished()
            finally:
                worker.close(job)
            return raised.value.status

    assert run(late()) == 504
    assert rows_in_use(engine) == (0, 0.0)


class Broken(NoDraft):
    """A drafter that fails."""

    def propose(self, contexts, budget):
        raise RuntimeError("broken")


def test_a_failing_drafter_does_not_affect_other_drafters():
    engine = tiny_engine(drafters={"broken": Broken()})

    async def fail():
        async with working(engine) as worker:
            good = asyncio.create_task(whole(worker, Request(PROMPTS[0], GREEDY)))
            with pytest.raises(RuntimeError, match="broken"):
                await whole(worker, Request(PROMPTS[0], GREEDY, "broken"))
            return (await good)[0]

    assert run(fail()) == engine.generate(PROMPTS[0], GREEDY).token_ids
    assert rows_in_use(engine) == (0, 0.0)


def test_a_step_that_fails_ends_its_jobs_and_not_the_server(engine, monkeypatch):
    def fail_once(*args, **options):
        monkeypatch.undo()
        raise RuntimeError("broken")

    async def fail():
        async with working(engine) as worker:
            monkeypatch.setattr(engine.model, "score_all", fail_once)
            with pytest.raises(RuntimeError, match="broken"):
                await whole(worker, Request(PROMPTS[0], GREEDY))
            return (await whole(worker, Request(PROMPTS[0], GREEDY)))[0]

    assert run(fail()) == engine.generate(PROMPTS[0], GREEDY).token_ids
    assert rows_in_use(engine) == (0, 0.0)


def test_the_stream_of_a_client_that_never_reads_is_closed_after_the_timeout(engine, monkeypatch):
    monkeypatch.setattr(sse, "MARGIN", 0.0)
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}

    async def nothing(*message):
        await asyncio.Event().wait()

    async def ignore():
        async with working(engine, max_waiting=0, timeout=0.2) as worker:
            job = await ask(worker, Request(PROMPTS[0], GREEDY))
            events = ({"token": event.token} async for _, event in job.tokens())
            await sse.JobResponse(worker, job, events)(scope, nothing, nothing)
            return (await whole(worker, Request(PROMPTS[0], SamplingParams(max_tokens=1))))[0]

    assert len(run(ignore())) == 1
    assert rows_in_use(engine) == (0, 0.0)


class Wrong:
    """A constraint that fails after some tokens."""

    def __init__(self, prompt_tokens):
        self.left = 5

    def process(self, tokens, logits):
        self.left -= 1
        if not self.left:
            raise ValueError("wrong")
        return logits

    def prune(self, tokens, tree):
        return tree


def test_a_failing_request_does_not_affect_others(engine):
    async def both():
        async with working(engine) as worker:
            good = asyncio.create_task(whole(worker, Request(PROMPTS[1], GREEDY)))
            with pytest.raises(ValueError, match="wrong"):
                await whole(worker, PreparedRequest(Request(PROMPTS[0], GREEDY), constrain=Wrong))
            return (await good)[0]

    assert run(both()) == engine.generate(PROMPTS[1], GREEDY).token_ids


def test_requests_wait_for_memory_and_one_that_never_fits_fails():
    engine = tiny_engine(max_batch=8, max_rows=512)
    requests = [
        Request(prompt, SamplingParams(max_tokens=200, ignore_eos=True)) for prompt in PROMPTS
    ]

    async def crowd():
        async with working(engine) as worker:
            tasks = [asyncio.create_task(whole(worker, each)) for each in requests]
            with pytest.raises(OutOfRowsError):
                await whole(worker, Request(PROMPTS[0], LONG))
            return [(await each)[0] for each in tasks]

    assert run(crowd()) == [engine.generate(each).token_ids for each in requests]


def test_draining_rejects_new_jobs_and_lets_running_ones_finish(engine):
    async def drain():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], GREEDY))
            worker.drain(30.0)
            with pytest.raises(ApiError, match="shutting down") as raised:
                await ask(worker, Request(PROMPTS[1], GREEDY))
            await job.finished()
            worker.close(job)
            assert not worker.alive
            return raised.value.status, job.results[0][0].token_ids

    assert run(drain()) == (503, engine.generate(PROMPTS[0], GREEDY).token_ids)


def test_draining_ends_jobs_at_the_deadline(engine):
    async def drain():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], LONG))
            async for _ in job.tokens():
                break
            worker.drain(0.0)
            with pytest.raises(ApiError, match="shutting down"):
                await job.finished()
            worker.close(job)

    run(drain())
    assert rows_in_use(engine) == (0, 0.0)


def test_stopping_ends_waiting_jobs_with_an_error(engine, monkeypatch):
    async def stop():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], LONG))
            waiting = asyncio.create_task(job.finished())
            await worker.stop()
            with pytest.raises(ApiError, match="shutting down"):
                await waiting
            worker.close(job)

    run(stop())
    assert rows_in_use(engine) == (0, 0.0)


def test_metrics_count_first_and_further_tokens_and_finished_jobs(engine):
    async def watch():
        async with working(engine) as worker:
            ids, _ = await whole(worker, Request(PROMPTS[0], GREEDY), streaming=True)
            return ids, worker._metrics

    ids, counts = run(watch())
    assert (counts.firsts, len(counts.jobs)) == (1, 1)
    assert 0 < counts.tokens < len(ids)  # the first step's are not among them
