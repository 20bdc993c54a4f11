"""Scores against hand-counted ones and the published implementation; intervals and power."""

import numpy as np
import pytest

from benchmarks.quality.power import detectable, difference
from benchmarks.quality.scores import (
    choice,
    exact_match,
    f1,
    letters,
    normalised,
    number,
    rouge_l_sum,
)
from graft.bench.statistics import mean


def test_words_are_compared_without_case_punctuation_and_articles():
    assert normalised("  The cat, an  OWL; a-b!") == "cat owl ab"
    assert exact_match("the Cat.", ["dog", "cat"]) == 1
    assert exact_match("cats", ["cat"]) == 0


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("the red cat", ["a red dog"], 0.5),  # one of two words, both ways
        ("red red cat", ["red dog"], 0.4),  # a word counts as often as both have it
        ("nothing", ["red dog", "nothing at all"], 0.5),  # the best reference
        ("", ["cat"], 0.0),
        ("the", ["a"], 1.0),  # nothing left on either side
    ],
)
def test_f1_by_hand(answer, references, expected):
    assert f1(answer, references) == pytest.approx(expected)


def test_rouge_is_the_published_one():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeLsum"])
    answer = "The committee met.\nIt agreed on the budget of 2024 after a long debate."
    gold = "After long debate the committee agreed on its budget.\nIt met in 2024."
    assert rouge_l_sum(answer, [gold]) == scorer.score(gold, answer)["rougeLsum"].fmeasure
    other = "Nothing of the kind happened."
    assert rouge_l_sum(answer, [other, gold]) == rouge_l_sum(answer, [gold])


def test_rouge_by_hand():
    """Union of the subsequences over lines: cat sat mat of 4 and of 5 words."""
    pytest.importorskip("rouge_score")
    value = rouge_l_sum("cat sat\nmat here", ["cat sat on mat now"])
    assert value == pytest.approx(2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5))
    assert rouge_l_sum("runs", ["run"]) == 0  # no stemming


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The correct answer is (B).", True),
        ("So **The correct answer is (B)**", True),
        ("The correct answer is B", True),
        ("The correct answer is (C). The correct answer is (B)", False),  # the first counts
        ("B", False),
        ("the correct answer is (B)", False),  # the rule minds its case
        ("The correct answer is C, not (B)", False),
    ],
)
def test_longbench_v2_reads_one_sentence(answer, right):
    assert choice(answer, ["B"]) == right


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("It cannot be B. Answer: A", "A", True),
        ("Answer: A\nNo, wait.\nAnswer: C", "A", False),  # the last word counts
        ("answer: (BD)", "BD", True),
        ("Answers: B and D.", "BD", True),
        ("Answer: B", "BD", False),  # several right ones, all of them
        ("Answer: B, D", "B", False),
        ("B. because of that", "B", True),
        ("The answer is Alice", "A", False),
        ("", "A", False),
    ],
)
def test_letters_of_multiple_choice(answer, gold, right):
    assert letters(answer, [gold]) == right


def test_numbers():
    assert number("16 - 3 - 4 = 9, so she makes $1,018.", ["1018"]) == 1
    assert number("18 eggs of 20", ["18"]) == 0
    assert number("none", ["18"]) == 0


def test_the_interval_covers_the_mean_of_many_draws():
    """95 of 100 intervals hold the truth, give or take what 200 trials allow."""
    generator = np.random.default_rng(1)
    trials = [mean(generator.normal(0.3, 1, 40)) for _ in range(200)]
    covered = sum(each.low <= 0.3 <= each.high for each in trials)
    assert 176 <= covered <= 199


def test_one_item_has_no_interval():
    assert mean([0.5]).low is None


def test_pairing_removes_the_common_variance():
    generator = np.random.default_rng(0)
    hard = generator.normal(0, 10, 50)
    other = hard + 1 + generator.normal(0, 0.1, 50)
    found = difference(hard, other)
    assert found.mean == pytest.approx(1, abs=0.1)
    assert found.high - found.low < 0.2  # unpaired it would be 8


def test_power_agrees_with_a_simulation():
    """A true difference of the stated size is found significant four times in five."""
    generator = np.random.default_rng(0)
    base = (generator.random(180) < 0.3).astype(float)
    other = np.where(generator.random(180) < 0.2, 1 - base, base)
    reach = detectable(base, other)
    spread = (other - base).std(ddof=1)
    found = 0
    for _ in range(400):
        drawn = generator.normal(reach, spread, 180)
        found += abs(drawn.mean()) > 1.96 * drawn.std(ddof=1) / 180**0.5
    assert 0.73 < found / 400 < 0.87
    assert reach > 0.05  # 180 items cannot see 3 points


def test_equal_answers_leave_nothing_to_detect():
    assert detectable([1, 0, 1], [1, 0, 1]) is None


def test_difference_is_other_minus_base():
    assert difference([1.0, 2.0], [2.0, 3.0]).mean == 1
    assert difference([1.0, 2.0], [2.0, 3.0]).low == pytest.approx(1)
