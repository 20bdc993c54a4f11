"""Calibration of a draft model's probabilities."""

import numpy as np
import pytest

from graft.draft.pacing.trust import FIRST_RATE, Experience, Trust
from graft.tree.draft_tree import chain, from_paths

SHARES = np.array([0.95, 0.55, 0.15])


def calibrated(trust: Trust) -> list[float]:
    """Calibrated SHARES, vectorised and one by one."""
    found = trust.calibrated_all(SHARES).tolist()
    assert [trust.calibrated(share) for share in SHARES.tolist()] == pytest.approx(found)
    return found


def test_first_probabilities_are_the_models_own():
    trust = Trust(Experience())
    assert calibrated(trust) == pytest.approx(SHARES)
    assert trust.expected_rate == pytest.approx(FIRST_RATE)


@pytest.mark.parametrize(("came", "low", "high"), [([2, 3, 9], 0.85, 1.0), ([9], 0.0, 0.2)])
def test_acceptance_counts_for_tokens_of_similar_probability(came, low, high):
    trust = Trust(Experience())
    for _ in range(30):
        trust.observe(chain([1, 2, 3]), [1.0, 0.52, 0.58], came)
    sure, likely, unlikely = calibrated(trust)
    assert low <= likely <= high
    assert low <= trust.expected_rate <= high
    assert (sure, unlikely) == pytest.approx((0.95, 0.15))  # nothing was learned of these


def test_all_siblings_count_but_the_rate_is_that_of_the_best():
    trust = Trust(Experience())
    tree = from_paths(1, [[2], [3]])
    for _ in range(30):
        trust.observe(tree, [1.0, 0.55, 0.15], [3])
    _, first, second = calibrated(trust)
    assert first < 0.1
    assert second > 0.85
    assert trust.expected_rate < 0.1
    for _ in range(30):
        trust.observe(tree, [1.0, 0.55, 0.15], [2])
    assert trust.expected_rate > 0.6


def test_rates_recover_when_tokens_are_accepted_again():
    trust = Trust(Experience())
    for came in [[9]] * 40 + [[2]] * 15:
        trust.observe(chain([1, 2]), [1.0, 0.55], came)
    assert calibrated(trust)[1] > 0.4
    assert trust.expected_rate > 0.4


def test_rates_stay_between_zero_and_one():
    assert 0 < Trust(Experience()).calibrated(0.0)
    assert Trust(Experience()).calibrated(1.0) < 1


def test_new_sequence_starts_from_earlier_ones():
    experience = Experience()
    for came, low, high in (([9], 0.0, 0.1), ([2], 0.6, 1.0)):
        for _ in range(10):
            trust = Trust(experience)
            for _ in range(50):
                trust.observe(chain([1, 2]), [1.0, 0.55], came)
        assert low < Trust(experience).expected_rate < high
        assert calibrated(Trust(experience)) == pytest.approx(SHARES)


def test_answer_length_is_averaged():
    experience = Experience()
    for _ in range(50):
        experience.ended(10)
    assert 10 <= experience.answer < 12
