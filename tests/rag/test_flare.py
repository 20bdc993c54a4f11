"""FLARE on texts with hand-made probabilities."""

import pytest
from scripted import LANGUAGE, tokens, written

from graft.errors import InputError
from graft.rag.flare import THRESHOLDS, Flare, doubt_of

SURE = ((" He", 1.0), (" is", 0.9), (" old", 0.9), (".", 1.0))  # mean 1 - p = 0.05
UNSURE = ((" Ann", 0.5), (" was", 0.95), (" born", 1.0), (" in", 0.95), (" 1950", 0.2), (".", 1.0))
# mean 1 - p of UNSURE = (.5 + .05 + 0 + .05 + .8 + 0) / 6 = 0.2333...
POLICY = Flare(0.08, LANGUAGE)


def test_doubt_is_the_mean_of_one_minus_p():
    assert doubt_of(tokens(*SURE)) == pytest.approx(0.05)
    assert doubt_of(tokens(*UNSURE)) == pytest.approx(1.4 / 6)


def test_it_begins_without_documents_and_with_scores():
    plan = POLICY.first("Who?")
    assert (plan.keep, plan.query, plan.certain) == (0, None, False)
    assert POLICY.scored


def test_an_unsure_sentence_is_dropped_and_asked_about_without_its_unlikely_tokens():
    plan = POLICY.next(written(*SURE, *UNSURE, (" More", 0.1)))
    assert plan.keep == 4
    assert plan.query == "was born in ."
    assert plan.certain
    assert "0.23" in plan.reason


def test_what_is_left_of_a_word_stays_apart_from_the_word_before():
    plan = POLICY.next(written((" the", 1.0), (" cod", 0.1), ("e", 1.0), ("s", 0.1), (".", 1.0)))
    assert plan.query == "the e."


def test_a_sentence_of_unlikely_tokens_alone_is_asked_about_as_it_is():
    plan = POLICY.next(written((" Ann", 0.1), (" ran", 0.2), (".", 0.3)))
    assert plan.query == "Ann ran."


def test_a_sure_text_stays_and_goes_on_without_documents():
    plan = POLICY.next(written(*SURE))
    assert (plan.keep, plan.query) == (4, None)


def test_what_was_written_with_documents_stays_whole():
    plan = POLICY.next(written(*UNSURE, grounded=True))
    assert (plan.keep, plan.query) == (6, None)


def test_writing_ends_behind_the_first_unsure_sentence():
    enough = POLICY.first("q").enough
    assert not enough(tokens(*SURE, (" Then", 0.1)))
    assert not enough(tokens(*SURE, *UNSURE))  # its end is not certain yet
    assert enough(tokens(*SURE, *UNSURE, (" Then", 0.9)))


def test_published_thresholds():
    assert THRESHOLDS["2wiki"] == 0.10
    assert THRESHOLDS["hotpotqa"] == 0.08
    assert THRESHOLDS["strategyqa"] == 0.10
    with pytest.raises(InputError, match="from 0 to 1"):
        Flare(1.5)
