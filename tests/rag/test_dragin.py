"""DRAGIN on texts with hand-made entropies and attention."""

import numpy as np
import pytest
from scripted import LANGUAGE, FixedAttention, tokens, written

from graft.rag.dragin import Dragin, Thresholds, rind, shares_before, words_of

# Words: Ann | was | in | Paris. with a = 1, .5, .25, .25 and h = 0, 2, 2, mean(4, 0) = 2
TEXT = ((" Ann", 1, 0.0), (" was", 1, 2.0), (" in", 1, 2.0), (" Paris", 1, 4.0), (".", 1, 0.0))
COLUMNS = [1.0, 0.5, 0.25, 0.125, 0.125]  # the most any token looks at each


def looking_at(columns):
    """Attention whose maximum over rows is `columns`."""
    weights = np.zeros((len(columns), len(columns)))
    weights[-1] = columns
    return weights


def policy(*answers, threshold=1.0, top=25):
    return Dragin(FixedAttention(*answers), Thresholds(threshold, top), LANGUAGE)


def test_words_begin_with_or_after_a_blank():
    pieces = tokens("An", "n", " was", " in", "\n", "Par", "is", ".")
    assert words_of(pieces, 0, 8) == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 8)]
    assert words_of(pieces, 2, 4) == [(2, 3), (3, 4)]


def test_rind_is_share_of_attention_times_entropy_times_words():
    pieces = tokens(*TEXT)
    values = rind(pieces, words_of(pieces, 0, 5), np.array(COLUMNS))
    # total a = 2; 4 words: 1/2*0*4, .5/2*2*4, .25/2*2*4, .25/2*2*4
    assert values.tolist() == [0.0, 2.0, 1.0, 1.0]


def test_rind_without_attention_is_zero():
    pieces = tokens(*TEXT)
    assert rind(pieces, words_of(pieces, 0, 5), np.zeros(5)).tolist() == [0.0] * 4


def test_function_word_does_not_trigger():
    # " was" has 2.0, but says nothing; "Paris." has 1.0, which is not above 1.0
    assert policy(looking_at(COLUMNS)).uncertain(tokens(*TEXT)) is None


def test_uncertain_content_word_triggers_its_sentence():
    sentence, hits = policy(looking_at(COLUMNS), threshold=0.9).uncertain(tokens(*TEXT))
    assert (sentence.first, sentence.last) == (0, 5)
    assert hits == [(3, 5)]


def test_attention_is_over_generated_tokens_only():
    chosen = policy(looking_at(COLUMNS))
    chosen.next(written(*TEXT, question=("Who", "?"), kept=(" Well", ".")))
    assert chosen.attention.asked == [[100, 101, 102, 103, 104]]  # and QFS was not


def test_triggering_sentence_and_later_text_are_dropped():
    sure = ((" It", 1, 0.0), (" rained", 1, 0.1), (".", 1, 0.0))
    columns = [1.0, 1.0, 1.0, *COLUMNS]
    rows = np.full((8 + 2 + 1, 8 + 2 + 1), 0.01)
    chosen = policy(looking_at(columns), rows, threshold=0.9)
    plan = chosen.next(written(*sure, *TEXT, question=("Who", " slept?"), kept=(" Well",)))
    assert plan.keep == 3
    assert plan.query is not None
    assert "Paris" in plan.reason


def test_query_has_the_words_that_the_uncertain_one_attends_to():
    question = ("Which", " city", " inspired", " Ann", "?")
    # 5 of the question and 5 of the text; the hit's first token is number 8: row 7 predicts it
    rows = np.zeros((10, 10))
    rows[7, :8] = [0.0, 0.4, 0.1, 0.2, 0.0, 0.15, 0.1, 0.05]
    chosen = policy(looking_at(COLUMNS), rows, threshold=0.9, top=3)
    plan = chosen.next(written(*TEXT, question=question))
    # city .4, "Ann?" .2, " Ann" .15 are the top three content words, in the text's order
    assert plan.query == "city Ann? Ann"
    assert plan.keep == 0
    assert len(chosen.attention.asked[1]) == 10


def test_hit_at_the_start_has_no_row():
    assert shares_before(np.eye(3), [(0, 1)]).tolist() == [0.0, 0.0, 0.0]
    halves = shares_before(np.full((3, 3), 0.2), [(0, 1), (2, 3)])
    assert halves.tolist() == [0.25, 0.25, 0.0]


def test_first_sentence_of_a_grounded_call_is_kept():
    new = (*TEXT, (" Then", 1, 0.0))
    plan = policy().next(written(*new, grounded=True))
    assert (plan.keep, plan.query) == (5, None)


def test_empty_output_does_not_trigger():
    assert policy().next(written()).query is None


@pytest.mark.parametrize("threshold", [0.0, 0.9])
def test_zero_attention_never_gives_nan(threshold):
    chosen = policy(np.zeros((5, 5)), np.zeros((5, 5)), threshold=threshold)
    assert chosen.next(written(*TEXT)).query is None
