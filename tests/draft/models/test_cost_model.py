"""Whether to draft another level, by the seconds of draft model and target together."""

import numpy as np
import pytest

from graft.draft.drafter import Budget
from graft.draft.models.cost_model import TRIAL_SHARE, CostModel, NoCostLimit
from graft.draft.pacing.budget import MARGIN
from graft.models.step_costs import StepCosts

FLAT = Budget(63, np.ones(64))  # the target verifies any number of nodes in a second


def cost_model(draft_seconds, budget=FLAT):
    costs = StepCosts((128,), (1, 64), ((draft_seconds, draft_seconds),))
    return CostModel(budget, costs, length=100)


@pytest.mark.parametrize(("seconds", "acceptance", "faster"), [
    (0.1, 0.5, True), (0.4, 0.5, True), (0.5, 0.5, False), (0.9, 0.99, True), (1.0, 0.99, False),
])  # fmt: skip
def test_first_level_is_drafted_if_it_raises_the_rate(seconds, acceptance, faster):
    assert bool(cost_model(seconds).select([acceptance], [1])) == faster


def test_time_already_spent_counts():
    """Another level at 0.2 seconds for 0.3 tokens raises the rate of a slow step only."""
    fresh, slow = cost_model(0.2), cost_model(0.2)
    for each in (fresh, slow):
        each.set_draft([np.array([0.9, 0.8])])  # 2.7 tokens
    assert not fresh.select([0.3], [1])  # 2.7 tokens a second now
    for _ in range(5):
        slow.add_forward(1)
    assert slow.select([0.3], [1])  # 1.35 tokens a second now


def test_only_sequences_that_raise_the_rate_are_selected():
    steep = Budget(63, 1 + np.arange(64) * 0.2, base_tokens=3)
    assert cost_model(0.05, steep).select([0.2, 0.95, 0.9], [1, 1, 1]) == [1, 2]


def test_more_uncached_tokens_cost_more():
    costs = StepCosts((128,), (1, 64), ((0.1, 3.0),))
    assert CostModel(FLAT, costs, 100).select([0.6], [1])
    assert not CostModel(FLAT, costs, 100).select([0.6], [40])


def test_empty_selection():
    assert cost_model(0.1).select([], []) == []


def test_nodes_of_all_trees_compete():
    expensive = Budget(63, 1 + np.arange(64) * 0.5)
    each = cost_model(0.01, expensive)
    each.set_draft([np.array([0.9, 0.1]), np.array([0.8])])
    # only the 0.9 and the 0.8 raise the rate at 0.5 s a node
    assert not each.select([0.3], [1])


@pytest.mark.parametrize(("seconds", "depth", "acceptance", "saves"), [
    (0.1, 1, 1.0, True), (0.9, 8, 1.0, True), (0.97, 8, 1.0, False), (2.0, 8, 1.0, False),
    (0.4, 1, 0.5, True), (0.5, 8, 0.5, False), (0.9, 8, 0.5, False), (0.1, 1, 0.1, False),
])  # fmt: skip
def test_saved_seconds_depend_on_cost_and_acceptance(seconds, depth, acceptance, saves):
    assert (cost_model(seconds).saved_seconds(depth, 1, acceptance) > 0) == saves
    assert NoCostLimit().saved_seconds(depth, 1, acceptance) > 0


def test_saved_seconds_are_per_token():
    """Two tokens in 1.25 seconds instead of one in one."""
    assert cost_model(0.25).saved_seconds(1, 1, 1.0) == pytest.approx(1 - MARGIN * 1.25 / 2)
    assert cost_model(0.25).saved_seconds(1, 1, 0.5) < cost_model(0.25).saved_seconds(1, 1, 1.0)


def test_overhead_counts():
    costs = StepCosts((128,), (1, 64), ((0.1, 0.1),))
    expensive = CostModel(FLAT, costs, 100, overhead=0.5)
    assert expensive.forward_seconds(1) == pytest.approx(0.6)
    assert cost_model(0.1).select([0.5], [1])
    assert not expensive.select([0.5], [1])


def test_trials_take_their_share_of_a_plain_step():
    assert cost_model(0.1).trial_seconds == pytest.approx(TRIAL_SHARE)
    four = Budget(63, np.ones(64), base_tokens=4)
    assert cost_model(0.1, four).trial_seconds == pytest.approx(TRIAL_SHARE / 4)


def test_without_a_limit_all_are_selected():
    assert NoCostLimit().select([0.0, 0.1], [500, 1]) == [0, 1]
