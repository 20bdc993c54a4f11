"""Batching: one forward per step, and the same output as alone."""

import asyncio
import threading

import pytest
from late import Late
from tiny import tiny_engine

from graft.decode.loop import MAX_NODES
from graft.decode.request import Request
from graft.errors import GraftError, InputError
from graft.models.arena import BLOCK
from graft.sampling import SamplingParams

PRESETS = ["plain", "pld", "copy", "igpg", "auto"]
WORDS = "the end and the answer in an inn on the river where another one was then there "
RAGGED = [WORDS[: 5 + 9 * i] for i in range(8)]
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
LONG = [3 + i * 7 % 120 for i in range(2 * BLOCK + 50)]


@pytest.fixture(
    scope="module", params=[lambda forward: forward, Late], ids=["synchronous", "asynchronous"]
)
def engine(request):
    return tiny_engine(wrap=request.param)


def ids(results):
    return [result.token_ids for result in results]


@pytest.mark.parametrize("draft", PRESETS)
def test_forwards_are_steps_for_eight_ragged_prompts(engine, draft):
    before = engine.model.steps
    results = engine.generate([Request(prompt, GREEDY, draft) for prompt in RAGGED])
    assert sum(result.stats.prompt_tokens for result in results) <= BLOCK  # one chunk for all
    assert engine.model.steps - before == 1 + max(result.stats.steps for result in results)
    if draft == "plain":
        assert engine.model.steps - before == GREEDY.max_tokens


@pytest.mark.parametrize(
    ("draft", "params"),
    [*((draft, GREEDY) for draft in PRESETS), ("copy", SAMPLED), ("auto", SAMPLED)],
    ids=[*PRESETS, "copy sampled", "auto sampled"],
)
def test_batched_output_equals_output_alone(engine, draft, params):
    alone = [engine.generate(prompt, params, draft=draft) for prompt in RAGGED]
    together = engine.generate(RAGGED, params, draft=draft)
    assert ids(together) == ids(alone)
    if draft in ("pld", "copy", "igpg"):  # fixed numbers of nodes: the batch changes nothing
        steps = [[r.stats.per_step_accepted for r in results] for results in (alone, together)]
        assert steps[0] == steps[1]
        assert sum(r.stats.num_accepted_draft_tokens for r in together) > 0


def test_requests_have_their_own_parameters_and_drafts(engine):
    requests = [
        Request(RAGGED[3], GREEDY, "plain"),
        Request(RAGGED[4], SAMPLED, "copy", documents=["in an inn"], prediction="the end"),
        Request(RAGGED[5], SamplingParams(max_tokens=7, temperature=1, seed=1), "auto"),
        Request([5, 6, 7], SamplingParams(max_tokens=3)),
    ]
    assert ids(engine.generate(requests)) == [engine.generate(r).token_ids for r in requests]


@pytest.mark.parametrize("replaced", range(0, 8, 3))
def test_replacing_one_prompt_changes_no_other_output(engine, replaced):
    other = [*RAGGED]
    other[replaced] = "quite another one, and much longer than the rest of them are: " + WORDS
    first, second = (engine.generate(prompts, SAMPLED) for prompts in (RAGGED, other))
    kept = [i for i in range(8) if i != replaced]
    assert [first[i].token_ids for i in kept] == [second[i].token_ids for i in kept]
    assert first[replaced].token_ids != second[replaced].token_ids


def test_at_most_max_batch_run_and_the_next_starts_when_one_finishes():
    engine = tiny_engine(max_batch=3)
    widths, score = [], engine.model.score_all

    def watched(extents, trees, **options):
        widths.append(len(extents))
        return score(extents, trees, **options)

    engine.model.score_all = watched
    lengths = [5, 30, 9, 17, 1, 24, 12, 3]
    requests = [
        Request(prompt, SamplingParams(max_tokens=length, ignore_eos=True))
        for prompt, length in zip(RAGGED, lengths, strict=True)
    ]
    results = engine.generate(requests)
    assert [len(result.token_ids) for result in results] == lengths
    assert max(widths) == 3
    assert widths.count(3) > len(widths) // 2
    assert ids(results) == [engine.generate(request).token_ids for request in requests]
    assert engine.model.arena.taken == 0


def test_long_prompts_are_prefilled_while_others_decode(engine):
    endless = SamplingParams(max_tokens=200, ignore_eos=True)
    requests = [Request(RAGGED[2], endless), Request(LONG, GREEDY), Request(RAGGED[3], SAMPLED)]
    stream = engine.stream(requests[0])
    next(stream)
    others = [engine.stream(request) for request in requests[1:]]
    while others[0].result.token_ids == []:
        next(stream)  # steps serve all requests
    assert [s.finish().token_ids for s in [stream, *others]] == [
        engine.generate(request).token_ids for request in requests
    ]


@pytest.mark.parametrize("prompt", [RAGGED[4], LONG], ids=["short", "long"])
@pytest.mark.parametrize("draft", ["plain", "auto"])
def test_n_answers_share_the_rows_of_their_prompt(engine, prompt, draft):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True, n=4)
    before, rows = engine.model.steps, []
    stream = engine.stream(prompt, params, draft=draft)
    events = []
    for event in stream:
        events.append(event)
        rows.append(engine.model.arena.taken)
    choices = stream.result.choices
    assert len(choices) == 4
    assert len({tuple(choice.token_ids) for choice in choices}) == 4
    for i, choice in enumerate(choices):
        assert [event.token for event in events if event.choice == i] == choice.token_ids
    count = choices[0].stats.prompt_tokens
    assert max(rows) < 4 * (count % BLOCK + MAX_NODES + 40) + count // BLOCK * BLOCK
    chunks = -(-count // engine.model.chunk)
    assert engine.model.steps - before == chunks + max(c.stats.steps for c in choices)
    single = engine.generate(prompt, SamplingParams(temperature=1.0, seed=5, max_tokens=20,
                                                    ignore_eos=True), draft=draft)  # fmt: skip
    assert choices[0].token_ids == stream.result.token_ids == single.token_ids
    assert engine.model.arena.taken == 0


def test_n_answers_do_not_depend_on_the_batch_size():
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=20, n=5)
    few, many = (
        tiny_engine(max_batch=size).generate(LONG, params, draft="plain") for size in (1, 16)
    )
    assert ids(few.choices) == ids(many.choices)


def test_threads_share_an_engine(engine):
    requests = [Request(p, params) for p in RAGGED for params in (GREEDY, SAMPLED)]
    alone = [engine.generate(request).token_ids for request in requests]
    answers: dict[int, list[int]] = {}

    def run(i):
        if i % 2:
            answers[i] = engine.generate(requests[i]).token_ids
        else:
            answers[i] = [event.token for event in engine.stream(requests[i])]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answers[i] for i in range(len(requests))] == alone
    assert engine.model.arena.taken == 0


def test_async_streams_run_side_by_side(engine):
    alone = [engine.generate(prompt, SAMPLED).token_ids for prompt in RAGGED]

    async def ask(prompt):
        stream = engine.astream(prompt, SAMPLED)
        tokens = [event.token async for event in stream]
        assert stream.result.token_ids == tokens
        return tokens

    async def ask_all():
        return await asyncio.gather(*(ask(prompt) for prompt in RAGGED))

    before = engine.model.steps
    assert asyncio.run(ask_all()) == alone
    assert engine.model.steps - before < sum(len(tokens) for tokens in alone) / 2  # batched


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_cancelled_task_frees_its_rows_and_leaves_others_running(engine, taken):
    alone = engine.generate(RAGGED[5], SAMPLED).token_ids

    async def cancelled(reached):
        count = 0
        async for _ in engine.astream(RAGGED[2], SamplingParams(max_tokens=500, ignore_eos=True)):
            count += 1
            if count >= taken:
                reached.set()

    async def both():
        reached = asyncio.Event()
        if taken == 0:
            reached.set()
        other = asyncio.create_task(cancelled(reached))
        stream = engine.astream(RAGGED[5], SAMPLED)
        await anext(stream)
        await reached.wait()
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        _ = [event async for event in stream]
        return stream.result.token_ids

    assert asyncio.run(both()) == alone
    engine.loop.collect_finished()
    assert engine.model.arena.taken == 0


def test_async_stream_can_be_closed_early(engine):
    async def first():
        stream = engine.astream(RAGGED[2], SAMPLED)
        async for _ in stream:
            break
        await stream.aclose()
        return stream.result

    assert asyncio.run(first()).finish_reason == "cancelled"
    assert engine.model.arena.taken == 0


def test_unread_streams_pause_and_others_run():
    engine = tiny_engine(max_batch=2)
    endless = SamplingParams(max_tokens=1000, ignore_eos=True)
    unread = [engine.stream(prompt, endless, draft="plain") for prompt in RAGGED[:4]]
    for _ in range(3):
        assert len(engine.generate(RAGGED[5], GREEDY).token_ids) == 40
    written = [len(stream.result.token_ids) for stream in unread]
    assert max(written) < 200  # they pause
    assert len(list(unread[3])) == 1000  # and resume when read
    for stream in unread:
        stream.close()
    assert engine.model.arena.taken == 0


def test_cancelled_queued_requests_are_skipped():
    engine = tiny_engine(max_batch=2)
    alone = [engine.generate(prompt, SAMPLED).token_ids for prompt in RAGGED]
    streams = [engine.stream(prompt, SAMPLED) for prompt in RAGGED]
    next(streams[0])
    before = engine.model.steps
    for stream in streams[2:7:2] + streams[3:5]:
        stream.close()
    assert [streams[i].finish().token_ids for i in (0, 1, 5, 7)] == [alone[i] for i in (0, 1, 5, 7)]
    assert engine.model.steps - before <= 2 * SAMPLED.max_tokens
    assert engine.model.arena.taken == 0


def test_failing_callback_fails_only_its_request(engine):
    alone = engine.generate(RAGGED[3], SAMPLED).token_ids

    def fail(tokens, logits):
        if len(tokens) > 20:
            raise ZeroDivisionError("in the caller's own code")
        return logits

    bad = engine.stream(Request(RAGGED[2], SAMPLED, process=fail))
    good = engine.stream(RAGGED[3], SAMPLED)
    assert good.finish().token_ids == alone
    with pytest.raises(ZeroDivisionError, match="own code"):
        list(bad)
    with pytest.raises(ZeroDivisionError):
        engine.generate([Request(RAGGED[3], SAMPLED), Request(RAGGED[2], process=fail)])
    assert engine.model.arena.taken == 0


@pytest.mark.parametrize("draft", PRESETS)
def test_callbacks_see_every_token_once_and_in_order(engine, draft):
    prompt, seen, stops = [5, 6, 7, 8], [], []

    def process(tokens, logits):
        assert tokens[:4] == prompt
        seen.append(list(tokens[4:]))
        logits = logits.clone()
        logits[9] = -float("inf")
        return logits

    def stop_when(tokens, logits):
        stops.append(len(tokens) - 4)
        return len(tokens) == 4 + 25

    request = Request(prompt, SAMPLED, draft, process=process, stop_when=stop_when)
    result = engine.generate(request)
    assert result.finish_reason == "stop"
    assert len(result.token_ids) == 25
    assert 9 not in result.token_ids
    assert stops == list(range(1, 26))
    assert [len(tokens) for tokens in seen] == list(range(len(seen)))
    assert seen[25 - 1] == result.token_ids[:-1]
    plain = engine.generate(Request(prompt, SAMPLED, "plain", process=process))
    assert plain.token_ids[:25] == result.token_ids


def test_using_the_engine_inside_a_callback_is_refused(engine):
    def ask(tokens, logits):
        engine.generate(RAGGED[1], GREEDY)
        return logits

    with pytest.raises(InputError, match="a callback cannot use the engine"):
        engine.generate(Request(RAGGED[2], GREEDY, process=ask))


def test_bad_request_in_a_list_is_refused_before_any_step(engine):
    before = engine.model.steps
    with pytest.raises(InputError, match="the prompt is empty"):
        engine.generate([RAGGED[1], ""])
    with pytest.raises(InputError, match="has its own parameters"):
        engine.generate([Request(RAGGED[1])], GREEDY)
    assert (engine.model.steps, engine.model.arena.taken) == (before, 0)


def test_bounded_cache_queues_requests_and_refuses_too_large_ones():
    engine = tiny_engine(max_rows=320)
    results = engine.generate([Request(prompt, GREEDY, "plain") for prompt in RAGGED])
    assert [len(result.token_ids) for result in results] == [40] * 8
    with pytest.raises(GraftError, match="the cache is full"):
        engine.generate([7] * 300, GREEDY)
    assert engine.generate(RAGGED[2], GREEDY).token_ids == results[2].token_ids
