"""Origins of copied tokens: every origin points to the token itself."""

import pytest
from tiny import tiny_engine

from graft.decode.request import Request
from graft.draft.copies.texts import Layout, Origin, text_spans
from graft.draft.drafter import DraftContext
from graft.sampling import SamplingParams

DOCUMENTS = ["", "an inn on the river ", "the end and the answer in an inn on the river " * 3]
CHAT = [
    {"role": "system", "content": "the river and the inn"},
    {"role": "user", "content": "where the end and the answer are, there the river is"},
]


@pytest.fixture(scope="module")
def engine():
    return tiny_engine()


def events_of(engine, prompt, draft):
    params = SamplingParams(max_tokens=120, ignore_eos=True, logprobs=0)
    prediction = "and then another one was there, on the river, and then another "
    return list(engine.stream(Request(prompt, params, draft, DOCUMENTS, prediction)))


def texts_of(engine, prompt, events):
    """By kind and number, the tokens that may be copied."""
    encoder = engine.encoder
    documents = {("document", i): encoder.text(text) for i, text in enumerate(DOCUMENTS)}
    prediction = "and then another one was there, on the river, and then another "
    return documents | {
        ("prediction", 0): encoder.text(prediction),
        ("prompt", 0): encoder.prompt(prompt).tokens,
        ("output", 0): [event.token for event in events],
    }


@pytest.mark.parametrize("draft", ["auto", "pld", "copy", "igpg", "pld+copy"])
@pytest.mark.parametrize(
    "prompt", [CHAT, "the river and the end of the answer"], ids=["chat", "raw"]
)
def test_origin_points_to_the_copied_token(engine, prompt, draft):
    events = events_of(engine, prompt, draft)
    texts = texts_of(engine, prompt, events)
    copied = [(i, event) for i, event in enumerate(events) if event.origin]
    assert len(copied) > 10
    for i, event in copied:
        origin = event.origin
        assert texts[origin.source, origin.text][origin.token] == event.token
        assert event.source in (origin.source, "both")
        assert origin.source != "output" or origin.token < i
    assert all(event.source for _, event in copied)


def test_target_tokens_have_no_origin(engine):
    events = events_of(engine, CHAT, "plain")
    assert [event.origin for event in events] == [None] * len(events)
    assert [event.step for event in events] == list(range(len(events)))


def test_tokens_of_a_step_share_its_number(engine):
    events = events_of(engine, CHAT, "auto")
    steps = [event.step for event in events]
    assert steps[:2] == [0, 1]
    assert steps == sorted(steps)
    assert set(steps) == set(range(steps[-1] + 1))
    own = [event.step for event in events if not event.source]
    assert len(own) == len(set(own))


def test_places_count_borders_and_skip_empty_texts():
    context = DraftContext(0, prompt=[9, 9, 5, 6, 9], quotable=[(2, 4)], documents=[[], [1, 2]])
    spans = text_spans(context)
    assert [span.source for span in spans] == ["document", "prompt", "output"]
    layout = Layout(spans)
    assert layout.origin(1) == Origin("document", 1, 1)
    assert layout.origin(3) == Origin("prompt", 0, 2)
    assert layout.origin(6) == Origin("output", 0, 0)
    assert layout.origin(-1) is None
