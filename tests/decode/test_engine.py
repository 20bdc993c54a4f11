"""The engine: statistics, freed rows, the end of the context, bad input, parallel streams."""

import pytest
from late import Late
from tiny import tiny_engine

from graft.decode.request import Request
from graft.decode.text import EncodedPrompt
from graft.errors import ContextLengthError, InputError
from graft.sampling import SamplingParams

PRESETS = ["plain", "pld", "copy", "igpg", "auto"]
PROMPT = "the end and the answer"
GREEDY = SamplingParams(max_tokens=60, ignore_eos=True)


@pytest.fixture(
    scope="module", params=[lambda forward: forward, Late], ids=["synchronous", "asynchronous"]
)
def engine(request):
    return tiny_engine(wrap=request.param)


@pytest.mark.parametrize("draft", PRESETS)
@pytest.mark.parametrize("stop", [(), ("u)",), ("0q",)])
def test_events_joined_are_the_result(engine, draft, stop):
    params = SamplingParams(max_tokens=60, stop=stop, ignore_eos=True)
    stream = engine.stream(PROMPT, params, draft=draft)
    events = list(stream)
    assert "".join(event.text for event in events) == stream.result.text
    assert [event.token for event in events] == stream.result.token_ids
    assert [event.step for event in events] == sorted(event.step for event in events)


@pytest.mark.parametrize("draft", PRESETS)
def test_every_step_yields_its_accepted_tokens_and_one_more(engine, draft):
    result = engine.generate(PROMPT, GREEDY, draft=draft)
    stats = result.stats
    whole = 1 + sum(stats.per_step_accepted) + stats.steps
    assert stats.tokens == len(result.token_ids) == 60
    assert whole - stats.tokens in (0, 1)  # max_tokens may cut the last step's own token
    assert stats.prompt_tokens == len(engine.encoder.prompt(PROMPT).tokens)
    assert sum(stats.accepted_by_source.values()) == stats.num_accepted_draft_tokens
    assert sum(stats.drafted_by_source.values()) == stats.num_draft_tokens
    if draft == "plain":
        assert (stats.steps, stats.num_draft_tokens, stats.tokens_per_step) == (59, 0, 1.0)


def test_statistics_have_vllms_names(engine):
    stats = engine.generate(PROMPT, GREEDY, draft="copy").stats
    numbers = stats.as_dict()
    ours = {"prompt_tokens", "tokens", "steps", "tokens_per_step", "prefill_seconds"}
    ours |= {"decode_seconds", "tokens_per_second", "accepted_by_source"}
    assert ours <= set(numbers)
    speculation = numbers["speculative_decoding"]
    histogram = speculation["acceptance_histogram"]
    assert sum(histogram) == speculation["num_spec_steps"] == stats.steps
    assert sum(a * n for a, n in enumerate(histogram)) == speculation["num_accepted_draft_tokens"]
    assert sum(speculation["per_step_drafted"]) == speculation["num_draft_tokens"]
    rate = speculation["num_accepted_draft_tokens"] / speculation["num_draft_tokens"]
    assert speculation["draft_acceptance_rate"] == pytest.approx(rate)
    assert speculation["mean_acceptance_length"] == numbers["tokens_per_step"]


@pytest.mark.parametrize("taken_events", [0, 1, 5])
def test_closing_a_stream_early_frees_its_rows(engine, taken_events):
    before = engine.model.arena.taken
    stream = engine.stream(PROMPT, GREEDY, draft="auto")
    events = iter(stream)
    taken = [next(events) for _ in range(taken_events)]
    assert (engine.model.arena.taken > before) == (taken_events > 0)
    stream.close()
    stream.close()
    assert engine.model.arena.taken == before
    assert stream.result.finish_reason == "cancelled"
    assert [event.token for event in taken] == stream.result.token_ids[:taken_events]


def test_closed_stream_makes_no_more_steps(engine):
    stream = engine.stream(PROMPT, GREEDY, draft="plain")
    events = iter(stream)
    next(events)
    stream.close()
    steps = engine.model.steps
    assert list(events) == []
    assert engine.model.steps == steps


def test_finished_answer_frees_its_rows(engine):
    before = engine.model.arena.taken
    engine.generate(PROMPT, GREEDY)
    assert engine.model.arena.taken == before


def test_refused_request_allocates_no_rows(engine):
    before = engine.model.arena.taken
    with pytest.raises(InputError, match="logit_bias names token 999"):
        engine.stream(PROMPT, SamplingParams(logit_bias={999: 1.0}))
    assert engine.model.arena.taken == before


@pytest.mark.parametrize("draft", PRESETS)
def test_parallel_streams_generate_what_they_generate_alone(engine, draft):
    prompts = [PROMPT, "an inn on the river"]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True)
    alone = [engine.generate(prompt, params, draft=draft).token_ids for prompt in prompts]
    streams = [engine.stream(prompt, params, draft=draft) for prompt in prompts]
    for _ in zip(*streams, strict=False):
        pass
    for stream in streams:
        list(stream)
    assert [stream.result.token_ids for stream in streams] == alone


@pytest.mark.parametrize("draft", PRESETS)
def test_generation_reaches_the_end_of_the_context(draft):
    engine = tiny_engine(context_length=100)
    result = engine.generate(PROMPT, SamplingParams(max_tokens=500, ignore_eos=True), draft=draft)
    assert len(result.token_ids) == 100 - result.stats.prompt_tokens
    assert result.finish_reason == "length"
    assert (
        result.token_ids
        == tiny_engine()
        .generate(
            PROMPT, SamplingParams(max_tokens=len(result.token_ids), ignore_eos=True), draft="plain"
        )
        .token_ids
    )


def test_prompt_must_leave_one_token_of_the_context():
    engine = tiny_engine(context_length=10)
    assert len(engine.generate([5] * 9, GREEDY).token_ids) == 1
    with pytest.raises(ContextLengthError, match="10 tokens .* at most 9"):
        engine.stream([5] * 10, GREEDY)


@pytest.mark.parametrize(
    ("prompt", "draft", "line"),
    [
        ("", None, "the prompt is empty"),
        ([], None, "the prompt is empty"),
        ([3, 128], None, "token 128 is not among the model's 128"),
        (PROMPT, "medusa", "unknown draft 'medusa'; choose one of auto, plain"),
    ],
)
def test_bad_input_is_refused_in_one_line(engine, prompt, draft, line):
    with pytest.raises(InputError, match=line) as refused:
        engine.stream(prompt, draft=draft)
    assert "\n" not in str(refused.value)


def test_chosen_seed_is_reported_and_reproduces_the_text(engine):
    params = SamplingParams(temperature=1.0, max_tokens=30)
    first, second = engine.generate(PROMPT, params), engine.generate(PROMPT, params)
    assert first.seed != second.seed
    again = engine.generate(
        PROMPT, SamplingParams(temperature=1.0, max_tokens=30, seed=first.seed), draft="plain"
    )
    assert again.token_ids == first.token_ids


def test_documents_and_prediction_are_drafted_from_but_not_prefilled(engine):
    plain = engine.generate(PROMPT, GREEDY, draft="plain")
    for more in ({"documents": [plain.text]}, {"prediction": plain.text}):
        result = engine.generate(PROMPT, GREEDY, draft="copy", **more)
        assert result.token_ids == plain.token_ids
        assert result.stats.prompt_tokens == plain.stats.prompt_tokens
        assert result.stats.accepted_by_source[next(iter(more)).removesuffix("s")] > 0


def test_drafts_copy_only_quotable_spans():
    engine = tiny_engine()
    prompt = [*range(5, 40), *range(5, 30)]
    whole = engine.generate(Request(prompt, draft="pld"))
    second = engine.generate(Request(EncodedPrompt(prompt, [(35, 60)]), draft="pld"))
    assert whole.token_ids == second.token_ids
    none = engine.generate(EncodedPrompt(prompt, []), SamplingParams(max_tokens=2), draft="pld")
    assert none.stats.num_draft_tokens == 0


def test_draft_tokens_limits_the_draft_of_a_step():
    engine = tiny_engine()
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    free, few = (
        engine.generate(Request("the end and the end", params, "copy", draft_tokens=limit))
        for limit in (None, 2)
    )
    assert few.token_ids == free.token_ids
    assert max(few.stats.per_step_drafted) == 2 < max(free.stats.per_step_drafted)


def test_prompt_without_tokens_is_refused(engine):
    for prompt in ("\u4e16", []):
        with pytest.raises(InputError, match="prompt"):
            engine.stream(prompt)
