"""Documents that fit are whole; of longer ones the best passages fit the model's context."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_engine

import graft
from graft.decode.document_prompt import GAP, Chat, document_prompt, fit_documents
from graft.documents import Document, document_messages
from graft.errors import ContextLengthError, InputError
from graft.sampling import SamplingParams

SHORT = Document("short.md", "The lift is old.\n\nThe roof leaks.\n")
FILLER = "Nothing of interest is told in this line, nor anywhere near it.\n\n"
FACT = "The zebra lives in flat 7.\n\n"
LONG = Document("long.txt", FILLER * 60 + FACT + FILLER * 60)
QUESTION = "Where does the zebra live? zebra flat"
PARAMS = SamplingParams(max_tokens=100)


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(context_length=2048)


def count(engine, prompt):
    return len(engine.encoder.prompt(prompt.messages).tokens)


def test_documents_that_fit_are_whole(engine):
    prompt = graft.document_prompt(engine, "Why?", [SHORT, SHORT], PARAMS)
    assert prompt.messages == document_messages("Why?", [SHORT, SHORT])
    assert (prompt.whole, prompt.total_passages) == (True, 2)
    assert [(e.document, e.start, e.end) for e in prompt.passages] == [("short.md", 0, 34)] * 2


def test_without_documents_the_question_is_the_prompt(engine):
    prompt = document_prompt(engine, "Why?", [])
    assert prompt.messages == [{"role": "user", "content": "Why?"}]
    assert (prompt.whole, prompt.passages) == (True, ())


def test_long_document_is_cut_to_passages_that_match_the_question(engine):
    prompt = document_prompt(engine, QUESTION, [LONG], PARAMS)
    [message] = prompt.messages
    assert FACT.strip() in message["content"]
    assert message["content"].startswith(f"Document long.txt:\n\n{GAP}\n\n")
    assert message["content"].endswith(f"\n\n{GAP}\n\n{QUESTION}")
    assert not prompt.whole
    assert prompt.matched
    assert 0 < len(prompt.passages) < prompt.total_passages
    assert count(engine, prompt) <= 2048 - 100
    assert prompt.tokens > 2048
    assert any(e.start <= LONG.text.index(FACT) < e.end for e in prompt.passages)
    assert engine.generate(prompt.messages, PARAMS).stats.prompt_tokens == count(engine, prompt)


def test_selection_is_the_same_every_time(engine):
    one, other = (document_prompt(engine, QUESTION, [LONG, SHORT], PARAMS) for _ in range(2))
    assert one == other


def test_adjacent_passages_have_no_gap(engine):
    prompt = document_prompt(engine, "zebra", [LONG], PARAMS)
    first, second = prompt.passages[:2]
    assert first.end == second.start
    assert prompt.messages[0]["content"].count(GAP) == 2


def test_only_documents_with_passages_are_in_the_prompt(engine):
    other = Document("other.txt", FILLER * 60)
    prompt = document_prompt(engine, QUESTION, [other, LONG, SHORT], PARAMS)
    content = prompt.messages[0]["content"]
    assert "other.txt" not in content
    assert {e.document for e in prompt.passages} == {"long.txt"}


def test_pages_are_named(engine):
    pages = tuple(range(0, len(LONG.text), 500))
    prompt = document_prompt(engine, QUESTION, [Document("a.pdf", LONG.text, pages)], PARAMS)
    place = LONG.text.index(FACT)
    assert any(e.pages[0] <= place // 500 + 1 <= e.pages[1] for e in prompt.passages)


def test_question_without_matches_gets_the_first_passages(engine):
    documents = [Document("a.txt", "Alpha. " * 400), Document("b.txt", "Beta. " * 400)]
    prompt = document_prompt(engine, "Qqq?", documents, PARAMS)
    assert not prompt.matched
    assert prompt.passages[0].start == 0


def test_full_is_whole_or_refused(engine):
    nearly = Document("nearly.txt", "x" * 1990)
    assert not document_prompt(engine, "Why?", [nearly], PARAMS).whole
    whole = document_prompt(engine, "Why?", [nearly], PARAMS, full=True)
    assert whole.whole
    assert count(engine, whole) < 2048
    with pytest.raises(ContextLengthError, match=r"about 6,\d00 tokens but tiny takes 2,048"):
        document_prompt(engine, QUESTION, [LONG], PARAMS, full=True)


def test_keep_free_leaves_tokens_for_later_turns(engine):
    kept = document_prompt(engine, QUESTION, [LONG], PARAMS, keep_free=500)
    assert count(engine, kept) <= 2048 - 100 - 500


def test_documents_get_half_the_context_of_a_very_long_answer(engine):
    prompt = document_prompt(engine, QUESTION, [LONG], SamplingParams(max_tokens=100_000))
    assert 0 < count(engine, prompt) <= 1024


def test_question_that_fills_the_context_is_refused_in_one_line(engine):
    with pytest.raises(ContextLengthError, match="leaves no room") as refusal:
        document_prompt(engine, "why " * 700, [LONG], PARAMS)
    assert "\n" not in str(refusal.value)


def test_far_too_long_documents_are_not_tokenized_whole(engine, monkeypatch):
    longest = []
    text = engine.encoder.text
    monkeypatch.setattr(
        engine.encoder, "text", lambda each: longest.append(len(each)) or text(each)
    )
    prompt = document_prompt(engine, QUESTION, [Document("big.txt", LONG.text * 40)], PARAMS)
    assert max(longest) <= 4096
    assert prompt.tokens == pytest.approx(len(text(LONG.text)) * 40, rel=0.1)


def test_a_real_chat_template_is_counted(smollm2):
    text = "".join(f"Paragraph {i} speaks of zebras and of flat {i}.\n\n" for i in range(2000))
    prompt = document_prompt(smollm2, "Where do zebras live?", [Document("zoo.txt", text)])
    most = smollm2.context_length - SamplingParams().max_tokens
    assert 0.9 * most < count(smollm2, prompt) <= most


WORDS = st.sampled_from(["zebra", "flat", "lift", "the", "é", "and", "\n\n", ".\n", "# "])
DOCUMENTS = st.lists(st.lists(WORDS, min_size=1, max_size=300).map(" ".join), max_size=4)


def test_slightly_too_long_document_is_cut():
    """It is a single passage, which with its heading finds no room."""
    engine = small_engine(1000)
    zoo = Document("0.txt", " ".join(["zebra"] * 13))
    whole = count(engine, document_prompt(engine, "zebra?", [zoo]))
    engine = small_engine(whole + 29)
    prompt = document_prompt(engine, "zebra?", [zoo], SamplingParams(max_tokens=30))
    assert not prompt.whole
    assert 0 < prompt.passages[0].end < len(zoo.text)
    assert count(engine, prompt) <= whole - 1


@settings(max_examples=40)
@given(DOCUMENTS, st.integers(160, 500), st.integers(1, 60))
def test_a_prompt_always_fits_and_keeps_the_order(texts, context, answer):
    engine = small_engine(context)
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts) if text.strip()]
    params = SamplingParams(max_tokens=answer)
    prompt = document_prompt(engine, "zebra?", documents, params)
    assert count(engine, prompt) <= context - answer
    places = [(e.document, e.start) for e in prompt.passages]
    assert places == sorted(places)
    assert len(set(places)) == len(places)


ENGINES = {}


def small_engine(context):
    if not ENGINES:
        ENGINES[0] = tiny_engine()
    ENGINES[0].model.context_length = context
    return ENGINES[0]


@pytest.mark.parametrize("documents", [[SHORT, SHORT], [SHORT, LONG]], ids=["whole", "selected"])
def test_excerpts_know_their_place_in_the_first_user_message(engine, documents):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "At noon."},
        {"role": "user", "content": "And why?"},
    ]
    prompt = fit_documents(Chat(engine, chat), documents, PARAMS)
    assert [prompt.messages[0], *prompt.messages[2:]] == [chat[0], *chat[2:]]
    content = prompt.messages[1]["content"]
    assert content.endswith(QUESTION)
    for each in prompt.passages:
        text = documents[each.index].text[each.start : each.end]
        assert content[each.at + text.index(text.strip()) :].startswith(text.strip())
    assert {each.index for each in prompt.passages} >= {len(documents) - 1}


def test_documents_need_a_message_of_the_user(engine):
    with pytest.raises(InputError, match="message of the user"):
        fit_documents(Chat(engine, [{"role": "system", "content": "Be brief."}]), [SHORT])


def test_documents_over_the_limit_of_tokens_are_answered_from_passages(engine):
    text = LONG.text[: len(LONG.text) // 8]
    whole = document_prompt(engine, QUESTION, [Document("a", text)], PARAMS)
    assert whole.whole
    less = document_prompt(
        engine, QUESTION, [Document("a", text)], PARAMS, document_tokens=whole.tokens // 2
    )
    assert not less.whole
    used = sum(len(engine.encoder.text(text[each.start : each.end])) for each in less.passages)
    assert 0 < used <= whole.tokens // 2
    same = document_prompt(
        engine, QUESTION, [Document("a", text)], PARAMS, document_tokens=whole.tokens
    )
    assert same == whole
