import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.retrieval.passage import MAX_CHARACTERS, split

PIECES = ["word", " ", "\n", "\n\n", "\n# ", ". ", "。", "\t| a | b |\n", "é", "😀", "x" * 90]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=120).map("".join) | st.text(max_size=300)


@given(TEXTS, st.integers(1, 120))
def test_nothing_is_lost_or_repeated(text, limit):
    passages = split("a.txt", text, limit)
    assert "".join(passage.text for passage in passages) == text
    place = 0
    for passage in passages:
        assert passage.document == "a.txt"
        assert passage.start == place < passage.end
        assert text[passage.start : passage.end] == passage.text
        assert len(passage.text) <= limit
        place = passage.end


@given(TEXTS, st.integers(2, 120))
def test_only_the_last_passage_is_shorter_than_half(text, limit):
    for passage in split("a.txt", text, limit)[:-1]:
        assert len(passage.text) >= limit // 2


@pytest.mark.parametrize(
    ("unit", "end"),
    [
        ("Some words of a paragraph. And more,\nof it" + " here" * 20 + ".\n\n", ".\n\n"),
        ("| cell, one. | cell two |\n", "|\n"),
        ("    call(this. argument)\n", ")\n"),
        ("One sentence ends. ", ". "),
        ("日本語の文はここで終わる。", "。"),
        ("words without an end ", " "),
    ],
)
def test_cuts_are_at_the_best_border(unit, end):
    passages = split("a.txt", unit * 200)
    assert len(passages) > 2
    assert all(passage.text.endswith(end) for passage in passages)
    assert all(MAX_CHARACTERS // 2 <= len(passage.text) for passage in passages[:-1])


def test_a_section_begins_a_passage():
    text = "Intro line.\n" * 70 + "# Terms\n\n" + "Term line.\n" * 70
    assert any(passage.text.startswith("# Terms") for passage in split("a.md", text))


def test_line_that_ends_a_sentence_is_the_better_border():
    text = ("The sentence goes on\nto the next line.\n" * 80).strip()
    assert all(passage.text.endswith("line.\n") for passage in split("a.txt", text)[:-1])


def test_empty_text_has_no_passages():
    assert split("a.txt", "") == []
