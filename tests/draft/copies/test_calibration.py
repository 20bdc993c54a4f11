"""Hit rates of matches follow accepted tokens, per sequence."""

import numpy as np
import pytest

from graft.draft.copies.calibration import LONGEST, PRIOR, STORE_PRIOR, Calibration
from graft.match.matches import Matches


def matches(*nodes):
    """(token, parent, match length) of each."""
    tokens, parents, lengths = (np.array(column, np.int32) for column in zip(*nodes, strict=True))
    ones = np.ones(len(nodes), np.int32)
    fields = np.stack([tokens, parents, lengths, ones, ones, ones])
    return Matches(fields, ones.astype(np.float32))


PROPOSAL = matches((7, -1, 5), (8, 0, 6), (9, -1, 2))


def test_sequence_starts_from_the_priors():
    assert Calibration().rates[1:] == pytest.approx(PRIOR[1:], abs=1e-6)
    assert len(Calibration().rates) == LONGEST + 1


def test_sequence_starts_from_other_priors():
    one = Calibration(STORE_PRIOR)
    assert one.rates[1:] == pytest.approx(STORE_PRIOR[1:], abs=1e-6)
    for _ in range(20):
        one.observe(PROPOSAL, [7, 8, 1])
    assert one.rates[5] > STORE_PRIOR[5]
    assert Calibration().rates[5] == pytest.approx(PRIOR[5])


@pytest.mark.parametrize("prior", [PRIOR, STORE_PRIOR])
def test_priors_grow_with_the_match_length(prior):
    assert len(prior) == LONGEST + 1
    assert (np.diff(prior) >= 0).all()
    assert 0 < prior[1] < prior[-1] < 1


def test_hits_raise_and_misses_lower_the_rate():
    good, bad = Calibration(), Calibration()
    for _ in range(20):
        good.observe(PROPOSAL, [7, 8, 1])
        bad.observe(PROPOSAL, [3])
    assert good.rates[5] > PRIOR[5] > bad.rates[5]
    assert good.rates[6] > PRIOR[6]
    assert bad.rates[5] < 0.2


def test_hit_of_a_shorter_match_is_a_miss_of_the_longest():
    one = Calibration()
    one.observe(PROPOSAL, [9])
    assert one.rates[5] < PRIOR[5]


def test_distant_lengths_keep_their_rate():
    one = Calibration()
    for _ in range(20):
        one.observe(PROPOSAL, [3])
    assert one.rates[12:] == pytest.approx(PRIOR[12:], abs=1e-6)


def test_recent_outcomes_count_more():
    one = Calibration()
    for _ in range(30):
        one.observe(PROPOSAL, [3])
    low = one.rates[5]
    for _ in range(10):
        one.observe(PROPOSAL, [7, 1])
    assert one.rates[5] > low + 0.2


def test_rates_stay_between_0_and_1():
    one = Calibration()
    for _ in range(500):
        one.observe(matches((7, -1, 40)), [7])
    assert 0 < one.rates.min()
    assert one.rates.max() < 1


def test_empty_proposal_changes_nothing():
    one = Calibration()
    one.observe(Matches(np.empty((6, 3), np.int32), np.empty(0, np.float32)), [1, 2])
    assert one.rates[1:] == pytest.approx(PRIOR[1:], abs=1e-6)
