"""The thread that steps, and the jobs it does, around a tiny model."""

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
from graft.server.failures import Refusal
from graft.server.worker import Worker

PROMPTS = ["the end and the answer", "in an inn on the river", "where another one was then"]
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
LONG = SamplingParams(max_tokens=1900, ignore_eos=True)


class Watched:
    """Counts what it is told."""

    def __init__(self):
        self.firsts, self.tokens, self.jobs = 0, 0, []

    def first(self, seconds):
        self.firsts += 1

    def more(self, tokens, seconds):
        self.tokens += tokens

    def ended(self, job):
        self.jobs.append(job)


@asynccontextmanager
async def working(engine, *, max_waiting=64, timeout=60.0):
    worker = Worker(engine, Watched(), max_waiting=max_waiting, timeout=timeout)
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def ask(worker, request, *, heard=True):
    return await worker.open(
        lambda: [request], places=as_prepared(request).request.params.n, heard=heard
    )


async def whole(worker, request, *, heard=False):
    """The token ids of the first answer, and the events that were told."""
    job = await ask(worker, request, heard=heard)
    try:
        told = await job.finished()
        return job.results[0][0].token_ids, told
    finally:
        worker.close(job)


def rows_in_use(engine):
    engine.loop.lock.exclusive(engine.loop.collect_finished)
    return engine.running + engine.waiting, engine.model.arena.usage


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(max_batch=2)


@pytest.mark.parametrize("heard", [True, False])
def test_jobs_side_by_side_get_what_they_get_alone(engine, heard):
    requests = [Request(prompt, GREEDY, draft) for prompt in PROMPTS for draft in ("auto", "plain")]

    async def together():
        async with working(engine) as worker:
            return await asyncio.gather(*(whole(worker, each, heard=heard) for each in requests))

    answers = run(together())
    assert [ids for ids, _ in answers] == [engine.generate(each).token_ids for each in requests]
    if heard:
        assert all([event.token for _, event in told] == ids for ids, told in answers)


def test_a_stream_tells_every_token_by_itself_in_order(engine):
    async def streamed():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], GREEDY, "copy"))
            try:
                return [event.token async for _, event in job.tokens()]
            finally:
                worker.close(job)

    assert run(streamed()) == engine.generate(PROMPTS[0], GREEDY).token_ids


def test_a_job_that_is_closed_frees_its_rows_while_others_go_on(engine):
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


def test_who_leaves_before_the_job_is_open_leaves_nothing_behind(engine):
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


def test_a_full_queue_is_told_when_to_come_back(monkeypatch):
    engine = tiny_engine(max_batch=1)
    held = Held(engine, monkeypatch)

    async def crowd():
        async with working(engine, max_waiting=1) as worker:
            first, second = [await ask(worker, Request(PROMPTS[0], GREEDY)) for _ in range(2)]
            with pytest.raises(Refusal) as refused:
                await ask(worker, Request(PROMPTS[1], GREEDY))
            worker.close(first)
            third = await ask(worker, Request(PROMPTS[1], GREEDY))
            held.let()
            await asyncio.gather(second.finished(), third.finished())
            for job in (second, third):
                worker.close(job)
            return refused.value

    refusal = run(crowd())
    assert (refusal.status, refusal.code) == (429, "queue_full")
    assert refusal.retry_after >= 1


def test_n_answers_take_n_places():
    async def crowd():
        async with working(tiny_engine(max_batch=2), max_waiting=1) as worker:
            with pytest.raises(Refusal, match="full"):
                await ask(worker, Request(PROMPTS[0], SamplingParams(n=4)))
            await whole(worker, Request(PROMPTS[0], SamplingParams(n=3, max_tokens=5)))

    run(crowd())


def test_a_refused_prompt_gives_its_place_back(engine):
    async def refused():
        async with working(engine, max_waiting=0) as worker:
            for _ in range(4):
                with pytest.raises(GraftError, match="empty"):
                    await ask(worker, Request(" ", GREEDY))
            return (await whole(worker, Request(PROMPTS[0], GREEDY)))[0]

    assert run(refused()) == engine.generate(PROMPTS[0], GREEDY).token_ids


def test_a_job_that_takes_too_long_is_given_up(engine):
    async def late():
        async with working(engine, timeout=0.05) as worker:
            job = await ask(worker, Request(PROMPTS[0], LONG))
            try:
                with pytest.raises(Refusal, match="too long") as refused:
                    await job.finished()
            finally:
                worker.close(job)
            return refused.value.status

    assert run(late()) == 504
    assert rows_in_use(engine) == (0, 0.0)


class Broken(NoDraft):
    """Fails when it is asked."""

    def propose(self, contexts, budget):
        raise RuntimeError("broken")


def test_a_drafter_that_fails_hurts_nobody_who_drafts_otherwise():
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


def test_a_client_that_never_reads_is_left_when_its_time_is_up(engine, monkeypatch):
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


def test_one_bad_request_hurts_no_other(engine):
    async def both():
        async with working(engine) as worker:
            good = asyncio.create_task(whole(worker, Request(PROMPTS[1], GREEDY)))
            with pytest.raises(ValueError, match="wrong"):
                await whole(worker, PreparedRequest(Request(PROMPTS[0], GREEDY), constrain=Wrong))
            return (await good)[0]

    assert run(both()) == engine.generate(PROMPTS[1], GREEDY).token_ids


def test_requests_wait_for_memory_and_one_that_never_fits_is_refused():
    engine = tiny_engine(max_batch=8, max_rows=512)
    requests = [
        Request(prompt, SamplingParams(max_tokens=200, ignore_eos=True)) for prompt in PROMPTS
    ]

    async def crowd():
        async with working(engine) as worker:
            asked = [asyncio.create_task(whole(worker, each)) for each in requests]
            with pytest.raises(OutOfRowsError):
                await whole(worker, Request(PROMPTS[0], LONG))
            return [(await each)[0] for each in asked]

    assert run(crowd()) == [engine.generate(each).token_ids for each in requests]


def test_draining_refuses_what_is_new_and_lets_the_rest_end(engine):
    async def drain():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], GREEDY))
            worker.drain(30.0)
            with pytest.raises(Refusal, match="shutting down") as refused:
                await ask(worker, Request(PROMPTS[1], GREEDY))
            await job.finished()
            worker.close(job)
            assert not worker.alive
            return refused.value.status, job.results[0][0].token_ids

    assert run(drain()) == (503, engine.generate(PROMPTS[0], GREEDY).token_ids)


def test_draining_cuts_off_what_is_not_through_in_time(engine):
    async def drain():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], LONG))
            async for _ in job.tokens():
                break
            worker.drain(0.0)
            with pytest.raises(Refusal, match="shutting down"):
                await job.finished()
            worker.close(job)

    run(drain())
    assert rows_in_use(engine) == (0, 0.0)


def test_stopping_tells_whoever_still_waits(engine, monkeypatch):
    async def stop():
        async with working(engine) as worker:
            job = await ask(worker, Request(PROMPTS[0], LONG))
            waiting = asyncio.create_task(job.finished())
            await worker.stop()
            with pytest.raises(Refusal, match="shutting down"):
                await waiting
            worker.close(job)

    run(stop())
    assert rows_in_use(engine) == (0, 0.0)


def test_observers_hear_of_first_and_further_tokens_and_of_the_end(engine):
    async def watch():
        async with working(engine) as worker:
            ids, _ = await whole(worker, Request(PROMPTS[0], GREEDY), heard=True)
            return ids, worker._observer

    ids, watched = run(watch())
    assert (watched.firsts, len(watched.jobs)) == (1, 1)
    assert 0 < watched.tokens < len(ids)  # the first step's are not among them
