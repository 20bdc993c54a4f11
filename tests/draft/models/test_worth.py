"""Whether to draft on: by the seconds of draft model and target together."""

import numpy as np
import pytest

from graft.draft.drafter import Budget
from graft.draft.models.worth import TRIAL_SHARE, Account, Unlimited
from graft.draft.pacing.budget import MARGIN
from graft.models.step_costs import StepCosts

FLAT = Budget(63, np.ones(64))  # the target checks any number of nodes in a second


def account(draft_seconds, budget=FLAT):
    costs = StepCosts((128,), (1, 64), ((draft_seconds, draft_seconds),))
    return Account(budget, costs, length=100)


@pytest.mark.parametrize(("seconds", "hope", "pays"), [
    (0.1, 0.5, True), (0.4, 0.5, True), (0.5, 0.5, False), (0.9, 0.99, True), (1.0, 0.99, False),
])  # fmt: skip
def test_a_first_level_pays_if_its_gain_outweighs_its_time(seconds, hope, pays):
    assert bool(account(seconds).paying([hope], [1])) == pays


def test_time_already_spent_is_gone_but_counts():
    """Another level at 0.2 seconds for 0.3 tokens: worth it on top of a round that is slow."""
    fresh, late = account(0.2), account(0.2)
    for each in (fresh, late):
        each.weigh([np.array([0.9, 0.8])])  # 2.7 tokens
    assert not fresh.paying([0.3], [1])  # 2.7 tokens a second now
    for _ in range(5):
        late.pay(1)
    assert late.paying([0.3], [1])  # 1.35 tokens a second now


def test_only_those_sequences_go_on_for_which_it_pays():
    steep = Budget(63, 1 + np.arange(64) * 0.2, base_tokens=3)
    assert account(0.05, steep).paying([0.2, 0.95, 0.9], [1, 1, 1]) == [1, 2]


def test_long_stretches_to_read_cost_more():
    costs = StepCosts((128,), (1, 64), ((0.1, 3.0),))
    assert Account(FLAT, costs, 100).paying([0.6], [1])
    assert not Account(FLAT, costs, 100).paying([0.6], [40])


def test_nobody_asks_nobody_goes_on():
    assert account(0.1).paying([], []) == []


def test_what_is_worth_a_node_is_found_among_all():
    dear = Budget(63, 1 + np.arange(64) * 0.5)
    each = account(0.01, dear)
    each.weigh([np.array([0.9, 0.1]), np.array([0.8])])
    # only the 0.9 and the 0.8 are worth 0.5 s, and a third one would have to be as good
    assert not each.paying([0.3], [1])


@pytest.mark.parametrize(("seconds", "depth", "hope", "gains"), [
    (0.1, 1, 1.0, True), (0.9, 8, 1.0, True), (0.97, 8, 1.0, False), (2.0, 8, 1.0, False),
    (0.4, 1, 0.5, True), (0.5, 8, 0.5, False), (0.9, 8, 0.5, False), (0.1, 1, 0.1, False),
])  # fmt: skip
def test_drafts_gain_if_guesses_at_their_usual_rate_would_pay(seconds, depth, hope, gains):
    assert (account(seconds).gain(depth, 1, hope) > 0) == gains
    assert Unlimited().gain(depth, 1, hope) > 0


def test_what_drafts_gain_is_what_a_token_takes_less():
    """Two tokens in 1.25 seconds instead of one in one."""
    assert account(0.25).gain(1, 1, 1.0) == pytest.approx(1 - MARGIN * 1.25 / 2)
    assert account(0.25).gain(1, 1, 0.5) < account(0.25).gain(1, 1, 1.0)


def test_what_a_level_takes_besides_its_forward_counts():
    costs = StepCosts((128,), (1, 64), ((0.1, 0.1),))
    dear = Account(FLAT, costs, 100, overhead=0.5)
    assert dear.price(1) == pytest.approx(0.6)
    assert account(0.1).paying([0.5], [1])
    assert not dear.paying([0.5], [1])


def test_trials_take_their_share_of_a_plain_steps_time():
    assert account(0.1).trial_seconds == pytest.approx(TRIAL_SHARE)
    four = Budget(63, np.ones(64), base_tokens=4)
    assert account(0.1, four).trial_seconds == pytest.approx(TRIAL_SHARE / 4)


def test_the_papers_way_is_to_go_on():
    assert Unlimited().paying([0.0, 0.1], [500, 1]) == [0, 1]
