"""One step in flight: the host waits once per step, and the output does not change."""

from dataclasses import replace
from time import perf_counter

import pytest
from daily import daily
from late import Counted, Device, Late
from tiny import tiny_engine

from graft.assemble.copies import adaptive_copies
from graft.decode.in_flight import InFlightStep
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.draft.drafter import NoDraft
from graft.draft.pacing.controller import Controller
from graft.draft.pacing.estimator import Arm
from graft.models.arena import BLOCK
from graft.sampling import SamplingParams
from graft.verify.draws import Draws

AHEAD = ("plain", "auto")  # presets with steps that start before the last tokens are known
ENDED = ("ending", "stop strings")  # by tokens: the step after is launched already
PRESETS = ["plain", "pld", "copy", "igpg", "auto"]
WORDS = "the end and the answer in an inn on the river where another one was then there "
RAGGED = [WORDS[: 5 + 9 * i] for i in range(8)]
LONG = [3 + i * 7 % 120 for i in range(2 * BLOCK + 50)]
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.9, seed=7)
OPTIONS = {
    "greedy": GREEDY,
    "ending": replace(GREEDY, ignore_eos=False, stop_token_ids=(30, 40, 50, 60)),
    "temperature": SAMPLED,
    "filters": replace(SAMPLED, top_k=20, top_p=0.95, min_p=0.02),
    "penalties": replace(SAMPLED, repetition_penalty=1.1, presence_penalty=0.2, logit_bias={50: 1}),
    "logprobs": replace(SAMPLED, logprobs=2),
    "stop strings": replace(SAMPLED, stop=("e", "0q", "u)", "W")),
    "n answers": replace(SAMPLED, n=3),
}


@pytest.fixture(scope="module")
def at_once():
    return tiny_engine()


@pytest.fixture(scope="module")
def late():
    return tiny_engine(wrap=Late)


def answers(engine, request):
    """An answer's events and results without times."""
    stream = engine.stream(request)
    events = list(stream)
    return sorted(events, key=lambda event: event.choice), [
        (result.text, result.token_ids, result.finish_reason, _counts(result.stats))
        for result in stream.result.choices or [stream.result]
    ]


def _counts(stats):
    return {key: value for key, value in stats.as_dict().items() if "second" not in key}


@pytest.mark.parametrize("draft", PRESETS)
@pytest.mark.parametrize("option", daily(OPTIONS, "ending", "penalties", "logprobs", "n answers"))
def test_asynchronous_steps_give_the_same_answers_events_and_statistics(
    at_once, late, option, draft
):
    for prompt in (RAGGED[4], LONG) if draft in AHEAD else (RAGGED[4],):
        request = Request(prompt, OPTIONS[option], draft)
        before = at_once.model.steps, late.model.steps
        assert answers(late, request) == answers(at_once, request)
        extra = (late.model.steps - before[1]) - (at_once.model.steps - before[0])
        assert extra in ((0, 1) if option in ENDED and draft in AHEAD else (0,))
    assert late.model.arena.taken == 0


@pytest.mark.parametrize("option", ["greedy", "temperature"])
def test_plain_steps_start_before_the_last_tokens_are_known(late, option, monkeypatch):
    """Of all sequences of a batch, also while others wait for a place."""
    launched, waited, wait = [], [], Draws.wait
    monkeypatch.setattr(Draws, "wait", lambda self: waited.append(late.model.steps) or wait(self))
    requests = [Request(prompt, OPTIONS[option], "plain") for prompt in RAGGED]
    before = late.model.steps
    results = late.generate(requests)
    launched = [steps - before for steps in waited]  # steps launched when each was waited for
    assert sum(steps > place + 1 for place, steps in enumerate(launched)) > len(launched) // 2
    assert max(steps - place for place, steps in enumerate(launched)) == 2
    alone = [late.generate(request) for request in requests]
    assert [r.token_ids for r in results] == [r.token_ids for r in alone]


@pytest.mark.parametrize("option", ["greedy", "temperature"])
def test_steps_with_lookups_run_ahead_where_these_find_nothing(at_once, option, monkeypatch):
    """Copies that begin meanwhile are drafted a token later, and the text is plain decoding's."""

    def always_lookup(controller):
        controller._show_unseen()
        return Arm.LOOKUP

    controller = Controller(adaptive_copies(), perf_counter, runs_ahead=True)
    monkeypatch.setattr(Controller, "_decide", always_lookup)
    ahead, skip = [], Controller.skip
    monkeypatch.setattr(Controller, "skip", lambda self: ahead.append(self) or skip(self))
    engine = tiny_engine(wrap=Late, drafters={"lookups": controller})
    for prompt in (RAGGED[7], 4 * WORDS):
        plain = at_once.generate(Request(prompt, OPTIONS[option], "plain"))
        found = engine.generate(Request(prompt, OPTIONS[option], "lookups"))
        assert found.token_ids == plain.token_ids
    assert len(ahead) > 3
    assert found.stats.steps < plain.stats.steps  # drafts were accepted, too


def test_a_request_that_arrives_between_ahead_steps_joins(at_once, late):
    stream = late.stream(RAGGED[5], GREEDY, draft="plain")
    first = [next(stream) for _ in range(6)]
    joined = late.generate(Request(RAGGED[2], SAMPLED, "plain"))
    rest = list(stream)
    assert joined.token_ids == at_once.generate(Request(RAGGED[2], SAMPLED, "plain")).token_ids
    expected = list(at_once.stream(RAGGED[5], GREEDY, draft="plain"))
    assert "".join(e.text for e in [*first, *rest]) == "".join(e.text for e in expected)
    assert late.model.arena.taken == 0


@pytest.mark.parametrize("option", OPTIONS)
def test_result_without_streaming_is_the_same(at_once, late, option):
    for engine in (at_once, late):
        for prompt in (RAGGED[4], LONG) if option == "greedy" else (RAGGED[4],):
            request = Request(prompt, OPTIONS[option])
            events, expected = answers(engine, request)
            result = engine.generate(request)
            assert expected == [
                (each.text, each.token_ids, each.finish_reason, _counts(each.stats))
                for each in result.choices or [result]
            ]
            assert result.text == "".join(event.text for event in events if event.choice == 0)


def test_only_a_streamed_first_token_is_emitted_before_the_next_launch(late, monkeypatch):
    emitted, emit = [], InFlightStep.emit
    monkeypatch.setattr(
        InFlightStep, "emit", lambda self: emitted.append(late.model.steps) or emit(self)
    )
    for ask, ahead in ((late.stream, 0), (late.generate, 1)):
        emitted.clear()
        before = late.model.steps
        answer = ask(RAGGED[3], GREEDY, draft="plain")
        if ask == late.stream:
            answer.finish()
        assert emitted[0] - before == 1 + ahead


def test_all_kinds_of_requests_share_steps(at_once, late):
    requests = [
        Request(prompt, params, draft)
        for prompt, params, draft in zip(
            [*RAGGED[:7], LONG], OPTIONS.values(), PRESETS + PRESETS[2:], strict=True
        )
    ]
    texts = [[r.text for r in engine.generate(requests)] for engine in (late, at_once)]
    assert texts[0] == texts[1] == [at_once.generate(request).text for request in requests]


@pytest.mark.parametrize(
    "params",
    [OPTIONS[name] for name in ("greedy", "temperature", "filters", "penalties")],
    ids=["greedy", "temperature", "filters", "penalties"],
)
def test_the_host_waits_once_per_step(params):
    engine = tiny_engine(wrap=Counted)
    Device.waits.clear()
    requests = [Request(prompt, params, draft) for prompt in RAGGED for draft in ("copy", "plain")]
    results = engine.generate(requests)
    assert sum(result.stats.num_accepted_draft_tokens for result in results) > 10
    assert Device.waits == {"tolist": engine.model.steps}


def test_next_step_is_in_flight_when_the_caller_gets_a_token(at_once, late):
    """But the first token is returned before the next launch."""
    for engine, steps in ((at_once, 2), (late, 3)):
        before = engine.model.steps
        stream = engine.stream(RAGGED[2], GREEDY, draft="plain")
        next(stream)
        assert engine.model.steps - before == 1
        next(stream)
        assert engine.model.steps - before == steps
        stream.close()


def test_stream_closed_in_flight_frees_its_rows_and_leaves_others_running(at_once, late):
    alone = at_once.generate(RAGGED[5], SAMPLED).token_ids
    endless = replace(GREEDY, max_tokens=500)
    open_stream, closed = late.stream(RAGGED[5], SAMPLED), late.stream(RAGGED[2], endless)
    next(open_stream)
    next(closed)
    both = late.model.arena.taken
    closed.close()
    assert 0 < late.model.arena.taken < both
    assert [late.generate(RAGGED[i], GREEDY).token_ids for i in (1, 3)] == [
        at_once.generate(RAGGED[i], GREEDY).token_ids for i in (1, 3)
    ]  # in the freed rows
    assert open_stream.finish().token_ids == alone
    assert late.model.arena.taken == 0


def test_step_of_closed_streams_is_dropped(late):
    streams = [late.stream(prompt, GREEDY) for prompt in RAGGED[:3]]
    next(streams[0])
    steps = late.model.steps
    for stream in streams:
        stream.close()
    late.loop.step()
    assert late.model.steps == steps
    assert late.model.arena.taken == 0


@pytest.mark.parametrize("callback", ["process", "stop_when"])
def test_failing_callback_fails_only_its_request(at_once, late, callback):
    def fail(tokens, logits):
        assert not logits.isnan().any()
        if len(tokens) > 20:
            raise ZeroDivisionError("in the caller's own code")
        return logits if callback == "process" else False

    alone = at_once.generate(RAGGED[3], SAMPLED).token_ids
    for engine in (at_once, late):
        bad = engine.stream(Request([5, 6, 7], SAMPLED, "copy", **{callback: fail}))
        good = engine.stream(RAGGED[3], SAMPLED)
        with pytest.raises(ZeroDivisionError, match="own code"):
            list(bad)
        assert good.finish().token_ids == alone
        assert engine.model.arena.taken == 0


def fails_after(count, error=ZeroDivisionError):
    def fail(tokens, _):
        if len(tokens) > count:
            raise error
        return False

    return fail


def test_events_before_an_error_can_be_read(at_once, late):
    for engine in (at_once, late):
        stream = engine.stream(Request([5, 6, 7], SAMPLED, "copy", stop_when=fails_after(20)))
        tokens = [next(stream).token for _ in range(17)]
        with pytest.raises(ZeroDivisionError):
            next(stream)
        assert stream.result.token_ids[:17] == tokens


@pytest.mark.parametrize("last", [0, 3])
def test_callback_error_in_one_of_n_answers_ends_the_request(at_once, late, last):
    for engine in (at_once, late):
        fail = fails_after(3 + last)
        request = Request([5, 6, 7], replace(SAMPLED, n=3), "auto", stop_when=fail)
        with pytest.raises(ZeroDivisionError):
            engine.generate(request)
        assert engine.model.arena.taken == 0


def test_interrupt_ends_one_answer_and_the_others_continue(at_once, late):
    alone = at_once.generate(RAGGED[3], SAMPLED).token_ids
    good = late.stream(RAGGED[3], SAMPLED)
    interrupt = fails_after(12, KeyboardInterrupt)
    bad = late.stream(Request([5, 6, 7], SAMPLED, "plain", stop_when=interrupt))
    with pytest.raises(KeyboardInterrupt):
        bad.finish()
    assert good.finish().token_ids == alone
    bad.close()
    assert late.model.arena.taken == 0


def test_failing_forward_loses_no_generated_token(at_once):
    engine = tiny_engine(wrap=Late)
    expected = at_once.generate(RAGGED[3], SAMPLED).token_ids
    stream, run = engine.stream(RAGGED[3], SAMPLED, draft="plain"), engine.model.forward.run
    tokens = [next(stream).token for _ in range(5)]

    def fail(*_):
        raise MemoryError("of the device")

    engine.model.forward.run = fail
    with pytest.raises(MemoryError):
        next(stream)  # the step in flight completes, the next launch fails
    engine.model.forward.run = run
    tokens += [event.token for event in stream]
    assert tokens == expected


def test_cached_prefixes_are_shared_and_stored_while_a_step_is_in_flight(at_once):
    engine = tiny_engine(wrap=Late)
    engine.model.prefixes.use(max_rows=4096)
    first = engine.stream(LONG, SAMPLED)
    next(first)
    engine.remember(LONG)
    second = engine.generate([*LONG, 5, 6], GREEDY)
    assert second.stats.cached_tokens == 2 * BLOCK
    assert second.token_ids == at_once.generate([*LONG, 5, 6], GREEDY).token_ids
    assert first.finish().token_ids == at_once.generate(LONG, SAMPLED).token_ids


class AsyncUpdates(NoDraft):
    """Records the number of steps at each proposal or skip and each asynchronous update."""

    def __init__(self, model):
        self.model, self.proposed, self.updated = model, [], []

    def propose(self, contexts, budget):
        self.proposed.append(self.model.steps)
        return super().propose(contexts, budget)

    def skip(self):
        self.proposed.append(self.model.steps)

    def update_async(self):
        self.updated.append(self.model.steps)


def test_drafters_update_once_after_each_launch(late):
    drafter = AsyncUpdates(late.model)
    late.generate(PreparedRequest(Request(WORDS, GREEDY), drafters={"auto": drafter}))
    assert len(drafter.proposed) > 30
    assert drafter.updated == [steps + 1 for steps in drafter.proposed]


def test_failing_async_update_fails_only_its_own_requests(at_once, late):
    failing = AsyncUpdates(late.model)
    failing.updated = None
    streams = [
        late.submit(PreparedRequest(Request(WORDS, GREEDY), drafters={"auto": each}))
        for each in (failing, NoDraft())
    ]
    assert streams[1].finish().token_ids == at_once.generate(WORDS, GREEDY).token_ids
    with pytest.raises(AttributeError):
        streams[0].finish()


class Recorder(NoDraft):
    """Records the calls it gets."""

    def __init__(self):
        self.calls = []

    def start(self, context):
        self.calls.append(("start", list(context.tokens)))

    def observe(self, steps):
        self.calls += [("observe", step.tokens) for step in steps]

    def finish(self, sequence):
        self.calls.append(("finish",))


@pytest.mark.parametrize("prompt", [RAGGED[3], LONG], ids=["short", "long"])
def test_drafters_are_started_once_and_observe_every_token(prompt):
    recorder = Recorder()
    engine = tiny_engine(wrap=Late, drafters={"recorder": recorder})
    tokens = engine.generate(prompt, replace(GREEDY, max_tokens=5), draft="recorder").token_ids
    chunks = -(-len(prompt) // engine.model.chunk)
    assert recorder.calls == [
        ("start", []),
        *[("observe", [])] * (chunks - 1),
        *(("observe", [token]) for token in tokens),
        ("finish",),
    ]
