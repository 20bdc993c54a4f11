"""Sessions with scripted calls, and end to end with a tiny model."""

import pytest
from rag_tiny import CORPUS, QUESTION, rag_engine
from scripted_engine import ScriptedEngine

from graft.errors import InputError
from graft.rag.answering import Retrieved, RoundEnded, TextAdded
from graft.rag.flare import Flare
from graft.rag.session import Session
from graft.sampling import SamplingParams

LONG = SamplingParams(max_tokens=400, seed=1)


def scripted(*script, **options):
    engine = ScriptedEngine(*script)
    return engine, Session(engine, CORPUS, family="2wiki", reuse="off", **options)


def test_fixed_sentences_search_with_the_question_and_then_with_each_sentence():
    engine, session = scripted(
        " The cat is near. Dropped", " The river has a boat. More", " So the answer is a boat.|",
        policy="fs",
    )  # fmt: skip
    answer = session.ask(QUESTION, LONG)
    assert answer.text == "The cat is near. The river has a boat. So the answer is a boat."
    assert (answer.answer, answer.finish_reason, answer.forced) == ("a boat", "answer", False)
    queries = [each.query for each in answer.rounds]
    assert queries == [QUESTION, "The cat is near.", "The river has a boat."]
    assert [hit.passage.id for hit in answer.rounds[1].hits] == ["3"]
    assert answer.rounds[0].dropped == " D"  # the call ends with the next sentence's first token
    assert all(stream.closed for stream in engine.streams)
    assert engine.prompt(1).endswith("<|im_start|>assistant\n The cat is near.")


def test_flare_generates_an_unlikely_sentence_again():
    unsure = (" The cat slept. The river has a boat. So", {"boat.": 0.1, "river": 0.5})
    engine, session = scripted(
        unsure, " The river has an apple. So the answer is an apple. Else", policy="flare"
    )
    answer = session.ask(QUESTION, LONG)
    first, second = answer.rounds
    assert (first.query, first.text) == (None, " The cat slept.")
    assert first.dropped == " The river has a boat. S"
    assert second.query == "The has a"
    assert answer.text == "The cat slept. The river has an apple. So the answer is an apple."
    assert answer.totals.retrievals == 1
    assert "Context:" not in engine.prompt(0)
    assert "Context:" in engine.prompt(1)
    assert [r.params.logprobs for r in engine.requests] == [0, None]


def test_likely_answer_needs_no_search():
    _, session = scripted(" So the answer is yes.|", policy=Flare(0.5))
    answer = session.ask(QUESTION, LONG)
    assert (answer.totals.retrievals, answer.totals.calls, answer.answer) == (0, 1, "yes")


def test_answer_sentence_is_completed_under_every_policy():
    _, session = scripted(" So the answer is the old boat. And", policy="fl", threshold=12)
    answer = session.ask(QUESTION, LONG)
    assert answer.answer == "the old boat"
    assert answer.text.endswith("boat.")


def test_missing_answer_is_forced():
    engine, session = scripted(" The cat slept.|", " the boat. And", policy="fl", threshold=99)
    answer = session.ask(QUESTION, LONG)
    assert answer.text == "The cat slept. So the answer is the boat."
    assert (answer.forced, answer.answer, answer.finish_reason) == (True, "the boat", "stop")
    assert "Context:" not in engine.prompt(1)
    assert engine.requests[1].params.max_tokens == 20


def test_force_answer_can_be_disabled():
    _, session = scripted(" The cat slept.|", policy="fs", force_answer=False)
    answer = session.ask(QUESTION, LONG)
    assert (answer.answer, answer.forced) == ("", False)


def test_last_call_after_max_rounds_uses_the_last_passages():
    engine, session = scripted(
        " The cat slept. X", " The river ran. The boat sank. So the answer is no.|",
        policy="fs", max_rounds=1,
    )  # fmt: skip
    answer = session.ask(QUESTION, LONG)
    assert answer.totals.retrievals == 1
    assert answer.rounds[1].query is None
    assert "Context:" in engine.prompt(1)
    assert answer.text.endswith("The river ran. The boat sank. So the answer is no.")


def test_tokens_are_limited_over_all_rounds():
    engine, session = scripted(
        " The cat slept. X", " The river ran on and on and on", policy="fs", force_answer=False
    )
    answer = session.ask(QUESTION, SamplingParams(max_tokens=24))
    assert (len(answer.token_ids), answer.finish_reason) == (24, "length")
    used = len(engine.encoder.text(" The cat slept."))
    assert engine.requests[1].params.max_tokens == 24 - used


def test_a_round_that_adds_nothing_ends_the_answer():
    _, session = scripted("|", policy="fs", force_answer=False)
    answer = session.ask(QUESTION, LONG)
    assert (answer.text, answer.finish_reason) == ("", "stop")


def test_long_queries_are_cut_to_their_last_tokens():
    _, session = scripted(" The cat slept.|", policy="fl", force_answer=False)
    answer = session.ask("boat " * 100 + "and the apple?", LONG)
    assert answer.rounds[0].query.endswith("and the apple?")
    assert len(session.engine.encoder.text(answer.rounds[0].query)) <= 64


def test_every_call_has_a_seed_of_its_own():
    engine, session = scripted(" A cat. X", " A river. X", " So the answer is no.|", policy="fs")
    session.ask(QUESTION, SamplingParams(max_tokens=200, seed=5))
    seeds = [request.params.seed for request in engine.requests]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3


def test_guide_lists_passages_of_earlier_rounds():
    engine, session = scripted(
        " A boat. X",
        " In winter. X",
        " So the answer is no.|",
        policy="fs",
        guided=True,
        passages=1,
    )
    session.ask("Which river and boat?", LONG)
    assert "unrelated" not in engine.prompt(0)
    assert "[2] are related documents." in engine.prompt(1)
    assert "[2] are unrelated documents." in engine.prompt(2)


def test_events_are_in_order_and_have_all_kept_text():
    _, session = scripted(" A cat. X", " So the answer is no.|", policy="fs")
    stream = session.stream(QUESTION, LONG)
    events = list(stream)
    kinds = [type(event) for event in events]
    assert kinds == [Retrieved, TextAdded, RoundEnded] * 2
    text = "".join(event.text for event in events if isinstance(event, TextAdded))
    assert text.strip() == stream.answer.text


def test_cancelled_stream_closes_its_call():
    engine, session = scripted(" A cat slept here for long", policy="fl", threshold=99)
    stream = session.stream(QUESTION, LONG)
    for event in stream:
        if isinstance(event, TextAdded):
            break
    stream.close()
    assert engine.streams[0].closed
    assert stream.answer.finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "never"}, "unknown policy 'never'"),
        ({"policy": "fl", "reuse": "some"}, "unknown reuse 'some'"),
        ({"policy": "fl", "passages": 0}, "passages must be 1 or more"),
        ({"policy": "fl", "threshold": 0.5}, "every 1 or more tokens"),
        ({"policy": "fs", "threshold": 0.5}, "no threshold"),
        ({"policy": "fl", "style": "odd"}, "unknown style"),
    ],
)
def test_wrong_options_are_refused(options, message, engine):
    with pytest.raises(InputError, match=message):
        Session(engine, CORPUS, **options)


def test_wrong_questions_are_refused():
    _, session = scripted(policy="fs")
    with pytest.raises(InputError, match="empty"):
        session.ask("  ")
    with pytest.raises(InputError, match="leave n at 1"):
        session.ask("Who?", SamplingParams(n=2))


@pytest.fixture(scope="module")
def engine():
    return rag_engine()


SHORT = SamplingParams(max_tokens=48, temperature=0.8, seed=3)


def tiny_session(engine, policy, **options):
    return Session(engine, CORPUS, policy=policy, **options)


@pytest.mark.parametrize("policy", ["fl", "fs", "flare", "dragin"])
def test_reuse_and_drafts_change_no_token(engine, policy):
    answers = {
        (reuse, draft): tiny_session(engine, policy, reuse=reuse, draft=draft).ask(QUESTION, SHORT)
        for reuse, draft in [
            ("off", "plain"),
            ("demos", "igpg"),
            ("exact", "igpg"),
            ("exact", "auto"),
        ]
    }
    off = answers["off", "plain"]
    assert all(each.token_ids == off.token_ids for each in answers.values())
    assert all(
        [r.query for r in each.rounds] == [r.query for r in off.rounds] for each in answers.values()
    )
    assert off.totals.reused_tokens == 0
    assert answers["exact", "igpg"].totals.reused_tokens > 0


def test_off_computes_everything_and_caches_nothing(engine):
    session = tiny_session(engine, "fl", reuse="off")
    for _ in range(2):
        answer = session.ask(QUESTION, SHORT)
        assert all(each.stats.cached_tokens == 0 for each in answer.rounds)
    engine.model.prefixes.clear()
    session.ask(QUESTION, SHORT)
    after = tiny_session(engine, "fl", reuse="exact")
    after.prefill_demonstrations = lambda: 0.0
    assert after.ask(QUESTION, SHORT).rounds[0].stats.cached_tokens == 0


def test_demonstrations_are_prefilled_once(engine):
    engine.model.prefixes.clear()
    session = tiny_session(engine, "fl", reuse="demos")
    first, second = session.ask(QUESTION, SHORT), session.ask(QUESTION, SHORT)
    assert first.totals.demonstration_seconds > 0
    assert second.totals.demonstration_seconds == 0
    for each in (*first.rounds, *second.rounds):
        assert set(each.reused) <= {"demonstrations", "context"}  # all that never changes
        assert each.reused["demonstrations"] == len(session.prompter.head.tokens)


def test_answer_as_a_dictionary(engine):
    content = tiny_session(engine, "fs").ask(QUESTION, SHORT).as_dict()
    assert {"text", "answer", "rounds", "stats", "policy", "language", "seed"} <= set(content)
    wanted = {
        "query", "passages", "reused", "prefill_seconds", "decode_seconds", "retrieval_seconds",
    }  # fmt: skip
    assert wanted <= set(content["rounds"][0])
    assert set(content["rounds"][0]["passages"][0]) == {"id", "source", "score"}
