"""What a head's draft takes besides its levels."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import costs_of, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.drafter import Budget
from graft.draft.heads.head import DraftHead, growth_for
from graft.draft.heads.overhead import LEAST, SEQUENCES, measure, with_overhead
from graft.draft.heads.ranks import Ranks
from graft.draft.heads.worth import TRIAL_SHARE, Paying
from graft.models.heads.load import run_head
from graft.models.step_costs import StepCosts

every_kind = pytest.mark.parametrize("kind", KINDS)


def helper_of(kind, cost):
    network = tiny_network()
    runner = run_head(tiny_head(kind, network), tiny_engine(network).model, packed=True)
    return DraftHead(runner, growth_for(runner), costs_of(cost))


@every_kind
def test_it_is_what_a_draft_takes_beyond_its_level(kind):
    helper = helper_of(kind, 1e-9)
    overhead = measure(helper)
    assert overhead.nodes == SEQUENCES
    assert all(0 < second < 1 for second in overhead.seconds[0])
    assert measure(replace(helper, costs=costs_of(1e9))).seconds == ((LEAST, LEAST),)
    assert helper.runner.arena.taken == helper.runner.model.arena.taken == 0


def test_it_is_measured_once(monkeypatch):
    helper = helper_of("eagle2", 1e-9)
    known = with_overhead(helper, "weights", "fp32").overhead
    assert with_overhead(helper, "weights", "fp32").overhead == known
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    assert with_overhead(helper, "weights", "fp32").overhead != known


def flat(seconds):
    return StepCosts((1,), (1,), ((seconds,),))


def test_it_is_part_of_the_price():
    budget = Budget(63, np.linspace(1, 1.2, 64))
    free, dear = Paying(flat(0.01)), Paying(flat(0.01), flat(3.0))
    assert free.choose([Ranks()], 100, budget).beam.depth > 1
    assert dear.choose([Ranks()], 100, budget) is None
    trial = dear.trial([Ranks()], 100, budget)
    assert trial.allowance == TRIAL_SHARE
    assert trial.hopeless
    tokens = 1 + Ranks().rates.sum()
    assert tokens < 3
    assert trial.loss == pytest.approx(3.01 + budget.seconds[10] - tokens)  # what plain steps took


def test_the_less_is_missing_the_less_a_trial_costs():
    ranks, budget = Ranks(), Budget(63, np.linspace(1, 1.2, 64))
    prices = [Paying(flat(x)).trial([ranks], 100, budget).loss for x in (0.5, 0.9, 1.5, 3.0)]
    assert prices == sorted(prices)
    assert prices[0] < 0.1 * prices[-1]
    assert not Paying(flat(0.9)).trial([ranks], 100, budget).hopeless
    nodes = Budget(63, np.linspace(1, 64, 64))  # that is what plain steps take: nothing pays
    assert Paying(flat(0.5)).trial([ranks], 100, nodes).loss == pytest.approx(0.5)


def test_without_room_for_guesses_nothing_pays():
    full = Budget(63, np.ones(2), base_tokens=2)  # one node for two sequences
    shapes = Paying(flat(0.01))
    assert shapes.choose([Ranks(), Ranks()], 100, full) is None
    assert shapes.trial([Ranks(), Ranks()], 100, full).loss == pytest.approx(0.01)
