"""Trust in a draft model's word: from its own probabilities to what came true."""

import numpy as np
import pytest

from graft.draft.pacing.trust import FIRST_HOPE, Experience, Trust
from graft.tree.draft_tree import chain, from_paths

SHARES = np.array([0.95, 0.55, 0.15])


def believed(trust: Trust) -> list[float]:
    """What becomes of SHARES, all at once and one by one."""
    found = trust.all_believed(SHARES).tolist()
    assert [trust.believed(share) for share in SHARES.tolist()] == pytest.approx(found)
    return found


def test_at_first_the_model_is_believed():
    trust = Trust(Experience())
    assert believed(trust) == pytest.approx(SHARES)
    assert trust.hope == pytest.approx(FIRST_HOPE)


@pytest.mark.parametrize(("came", "low", "high"), [([2, 3, 9], 0.85, 1.0), ([9], 0.0, 0.2)])
def test_what_comes_true_counts_for_guesses_of_the_same_probability(came, low, high):
    trust = Trust(Experience())
    for _ in range(30):
        trust.observe(chain([1, 2, 3]), [1.0, 0.52, 0.58], came)
    sure, likely, unlikely = believed(trust)
    assert low <= likely <= high
    assert low <= trust.hope <= high
    assert (sure, unlikely) == pytest.approx((0.95, 0.15))  # nothing was learned of these


def test_all_siblings_stand_trial_but_hope_is_in_the_best_alone():
    trust = Trust(Experience())
    tree = from_paths(1, [[2], [3]])
    for _ in range(30):
        trust.observe(tree, [1.0, 0.55, 0.15], [3])
    _, first, second = believed(trust)
    assert first < 0.1
    assert second > 0.85
    assert trust.hope < 0.1
    for _ in range(30):
        trust.observe(tree, [1.0, 0.55, 0.15], [2])
    assert trust.hope > 0.6


def test_trust_returns_when_guesses_come_true_again():
    trust = Trust(Experience())
    for came in [[9]] * 40 + [[2]] * 15:
        trust.observe(chain([1, 2]), [1.0, 0.55], came)
    assert believed(trust)[1] > 0.4
    assert trust.hope > 0.4


def test_nothing_is_ever_certain():
    assert 0 < Trust(Experience()).believed(0.0)
    assert Trust(Experience()).believed(1.0) < 1


def test_a_new_sequence_hopes_what_those_before_it_taught():
    experience = Experience()
    for came, low, high in (([9], 0.0, 0.1), ([2], 0.6, 1.0)):
        for _ in range(10):
            trust = Trust(experience)
            for _ in range(50):
                trust.observe(chain([1, 2]), [1.0, 0.55], came)
        assert low < Trust(experience).hope < high
        assert believed(Trust(experience)) == pytest.approx(SHARES)


def test_how_long_answers_are_is_learned():
    experience = Experience()
    for _ in range(50):
        experience.ended(10)
    assert 10 <= experience.answer < 12
