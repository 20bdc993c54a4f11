"""FL-RAG and FS-RAG: ends of calls and queries."""

from pathlib import Path

import pytest
from scripted import LANGUAGE, tokens, written

from graft.rag.fixed import FIX_LENGTHS, FixedLength, FixedSentence


def test_first_query_is_the_question():
    for policy in (FixedLength(), FixedSentence(LANGUAGE)):
        plan = policy.first("Who was it?")
        assert (plan.keep, plan.query) == (0, "Who was it?")
        assert not policy.scored


def test_fixed_length_keeps_all_and_searches_with_the_last_tokens():
    policy = FixedLength(3)
    piece = (" It", " was", " Ann")
    assert [policy.first("q").is_complete(tokens(*piece[:n])) for n in range(4)] == [False] * 3 + [
        True
    ]
    plan = policy.next(written(*piece, kept=("Well.",), grounded=True))
    assert (plan.keep, plan.query, plan.certain) == (3, "It was Ann", True)


def test_published_lengths_are_those_of_the_guide():
    assert {name for name, length in FIX_LENGTHS.items() if length == 16} == {"2wiki"}
    assert {*FIX_LENGTHS.values()} == {16, 32}
    guide = Path(__file__).parents[2] / "docs" / "guide.md"
    assert "`fl` every 32 tokens (16 with `--family 2wiki`" in guide.read_text()


@pytest.mark.parametrize(
    ("pieces", "over"),
    [
        ([" It", " was", " Ann", "."], False),  # another may go on with a small letter
        ([" It", " was", " Ann", ".", " Then"], True),
        ([" It", " was", " Ann", ".", "\n"], False),
        ([" Dr", ".", " Ann"], False),
    ],
)
def test_fixed_sentence_is_complete_when_another_sentence_begins(pieces, over):
    assert FixedSentence(LANGUAGE).first("q").is_complete(tokens(*pieces)) is over


def test_fixed_sentence_keeps_the_first_and_searches_with_it():
    new = (" It", " was", " Ann", ".", " Then", " Bob")
    plan = FixedSentence(LANGUAGE).next(written(*new, grounded=True))
    assert (plan.keep, plan.query) == (4, "It was Ann.")


def test_fixed_sentence_keeps_an_incomplete_one():
    plan = FixedSentence(LANGUAGE).next(written(" It", " was", grounded=True))
    assert (plan.keep, plan.query) == (2, "It was")
