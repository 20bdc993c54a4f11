"""FL-RAG and FS-RAG: ends of calls and queries."""

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


def test_published_lengths():
    assert (FIX_LENGTHS["2wiki"], FIX_LENGTHS["hotpotqa"], FIX_LENGTHS["strategyqa"]) == (
        16,
        32,
        32,
    )


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
