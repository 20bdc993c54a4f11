"""FLARE on texts with hand-made probabilities."""

import pytest
from scripted import LANGUAGE, tokens, written

from graft.errors import InputError
from graft.rag.flare import Flare, doubt_of

SURE = ((" He", 1.0), (" is", 0.9), (" old", 0.9), (".", 1.0))  # mean 1 - p = 0.05
UNSURE = ((" Ann", 0.5), (" was", 0.95), (" born", 1.0), (" in", 0.95), (" 1950", 0.2), (".", 1.0))
# mean 1 - p of UNSURE = (.5 + .05 + 0 + .05 + .8 + 0) / 6 = 0.2333...
POLICY = Flare(0.08, LANGUAGE)


def test_doubt_is_the_mean_of_one_minus_p():
    assert doubt_of(tokens(*SURE)) == pytest.approx(0.05)
    assert doubt_of(tokens(*UNSURE)) == pytest.approx(1.4 / 6)


def test_first_call_has_no_documents_and_is_scored():
    plan = POLICY.first("Who?")
    assert (plan.keep, plan.query, plan.certain) == (0, None, False)
    assert POLICY.scored


def test_query_is_the_dropped_sentence_without_unlikely_tokens():
    plan = POLICY.next(written(*SURE, *UNSURE, (" More", 0.1)))
    assert plan.keep == 4
    assert plan.query == "was born in ."
    assert plan.certain
    assert "0.23" in plan.reason


def test_blank_before_a_dropped_token_is_kept():
    plan = POLICY.next(written((" the", 1.0), (" cod", 0.1), ("e", 1.0), ("s", 0.1), (".", 1.0)))
    assert plan.query == "the e."


def test_query_of_only_unlikely_tokens_is_the_whole_sentence():
    plan = POLICY.next(written((" Ann", 0.1), (" ran", 0.2), (".", 0.3)))
    assert plan.query == "Ann ran."


def test_likely_text_is_kept_and_continues_without_documents():
    plan = POLICY.next(written(*SURE))
    assert (plan.keep, plan.query) == (4, None)


def test_grounded_call_is_kept_whole():
    plan = POLICY.next(written(*UNSURE, grounded=True))
    assert (plan.keep, plan.query) == (6, None)


def test_tentative_call_ends_after_the_first_unlikely_sentence():
    is_complete = POLICY.first("q").is_complete
    assert not is_complete(tokens(*SURE, (" Then", 0.1)))
    assert not is_complete(tokens(*SURE, *UNSURE))  # its end is not certain yet
    assert is_complete(tokens(*SURE, *UNSURE, (" Then", 0.9)))


def test_threshold_is_a_mean_of_probabilities():
    with pytest.raises(InputError, match="from 0 to 1"):
        Flare(1.5)
