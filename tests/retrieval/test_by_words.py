"""Passages of a maximum number of words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.retrieval.by_words import by_words


@given(st.text(), st.integers(1, 20))
def test_only_blanks_are_lost_and_no_passage_is_too_long(text, limit):
    pieces = list(by_words(text, limit))
    assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())
    assert all(piece and len(piece.split()) <= limit for piece in pieces)


def test_passage_ends_with_a_sentence_that_ends_in_its_last_quarter():
    text = "one two three four five six seven eight nine. ten eleven"
    assert list(by_words(text, 10)) == [
        "one two three four five six seven eight nine.",
        "ten eleven",
    ]
    early = "one two three. four five six seven eight nine ten eleven"
    assert list(by_words(early, 10)) == [early.removesuffix(" eleven"), "eleven"]


def test_line_breaks_are_kept():
    assert list(by_words("| a | b |\n| c | d |\n")) == ["| a | b |\n| c | d |"]


def test_two_characters_count_as_a_word_where_there_are_no_spaces():
    assert [len(piece) for piece in by_words("中文" * 15, 10)] == [20, 10]


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_blank_text_has_no_passages(text):
    assert list(by_words(text)) == []


def test_long_run_of_letters_counts_as_several_words():
    assert max(map(len, by_words("x" * 10_000, 10))) == 640
