import pytest
from tiny import tiny_tokenizer

from benchmarks.decode.cut import GAP, Cutter
from benchmarks.suites.task import Prompt, chat
from graft.errors import InputError

DOCUMENT = "Beginning. " + "\n".join(f"Then é{n} and the 😀 end." for n in range(100)) + " End."
ASKED = "Read this.\n\n{}\n\nWhat did the {} say?"


def prompt(document=DOCUMENT, *, text=False, who="speaker"):
    content = ASKED.format(document, who)
    return Prompt(1, "qa", content if text else chat(content), document)


@pytest.fixture
def cutter():
    return Cutter(tiny_tokenizer())


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("most", [100, 101, 150, 512, 1000])
def test_a_cut_prompt_has_the_length_and_all_but_the_middle_of_its_document(cutter, text, most):
    tokens = cutter.fit(prompt(text=text), most)
    assert most - 8 <= len(tokens) <= most
    shown = tiny_tokenizer().decode(tokens)
    assert "Read this.\n\nBeginning." in shown
    assert "End.\n\nWhat did the speaker say?" in shown
    head, gap, tail = shown.partition(GAP)
    assert gap
    assert head.partition("Read this.\n\n")[2] in DOCUMENT
    assert tail.partition("\n\nWhat")[0] in DOCUMENT


def test_a_prompt_that_is_short_enough_stays_as_it_is(cutter):
    whole = cutter.tokens(prompt().content)
    assert cutter.fit(prompt(), len(whole)) == whole
    assert cutter.fit(prompt(), 10 * len(whole)) == whole
    assert len(cutter.fit(prompt(), len(whole) - 1)) < len(whole)


def test_bounds_are_the_tokens_without_and_with_the_document(cutter):
    fewest, whole = cutter.bounds(prompt())
    assert abs(whole - len(cutter.tokens(prompt().content))) <= 2
    assert abs(fewest - len(cutter.tokens(chat(ASKED.format(GAP, "speaker"))))) <= 2
    alone = Prompt(1, "qa", "the end")
    assert cutter.bounds(alone) == (len(cutter.tokens("the end")),) * 2


def test_a_prompt_that_cannot_be_so_short_is_none(cutter):
    fewest, _ = cutter.bounds(prompt())
    assert cutter.fit(prompt(), fewest) is None
    assert cutter.fit(prompt(who="speaker " * 100), 200) is None
    assert cutter.fit(Prompt(1, "qa", "the end of the end"), 4) is None


def test_a_document_may_be_all_of_the_prompt(cutter):
    tokens = cutter.fit(Prompt(1, "text", DOCUMENT, DOCUMENT), 200)
    assert 190 < len(tokens) <= 200


def test_a_model_without_a_chat_template_is_refused(cutter, monkeypatch):
    monkeypatch.setattr(tiny_tokenizer(), "chat_template", None)
    with pytest.raises(InputError, match="no chat template, which this suite needs"):
        cutter.fit(prompt(), 100)
