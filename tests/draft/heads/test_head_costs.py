"""The overhead of a head's draft, and its effect on the chosen shape."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import costs_of, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.drafter import Budget
from graft.draft.heads.costs import MIN_OVERHEAD, SEQUENCES, measure_overhead, with_overhead
from graft.draft.heads.head import DraftHead, growth_for
from graft.draft.heads.ranks import Ranks
from graft.draft.heads.shapes import TRIAL_SHARE, ShapeChooser
from graft.models.heads.load import run_head
from graft.models.step_costs import StepCosts

every_kind = pytest.mark.parametrize("kind", KINDS)


def head_of(kind, cost):
    network = tiny_network()
    runner = run_head(tiny_head(kind, network), tiny_engine(network).model, packed=True)
    return DraftHead(runner, growth_for(runner), costs_of(cost))


@every_kind
def test_overhead_is_a_drafts_time_without_its_level(kind):
    head = head_of(kind, 1e-9)
    overhead = measure_overhead(head)
    assert overhead.nodes == SEQUENCES
    assert all(0 < second < 1 for second in overhead.seconds[0])
    assert measure_overhead(replace(head, costs=costs_of(1e9))).seconds == (
        (MIN_OVERHEAD, MIN_OVERHEAD),
    )
    assert head.runner.arena.taken == head.runner.model.arena.taken == 0


def test_overhead_is_measured_once(monkeypatch):
    head = head_of("eagle2", 1e-9)
    known = with_overhead(head, "weights", "fp32").overhead
    assert with_overhead(head, "weights", "fp32").overhead == known
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    assert with_overhead(head, "weights", "fp32").overhead != known


def flat(seconds):
    return StepCosts((1,), (1,), ((seconds,),))


def test_overhead_counts_in_the_choice_of_a_shape():
    budget = Budget(63, np.linspace(1, 1.2, 64))
    cheap, expensive = ShapeChooser(flat(0.01)), ShapeChooser(flat(0.01), flat(3.0))
    assert cheap.choose([Ranks()], 100, budget).depth > 1
    assert expensive.choose([Ranks()], 100, budget) is None
    trial = expensive.trial([Ranks()], 100, budget)
    assert trial.allowance == TRIAL_SHARE
    assert trial.too_slow
    tokens = 1 + Ranks().rates.sum()
    assert tokens < 3
    assert trial.loss == pytest.approx(
        3.01 + budget.seconds[10] - tokens
    )  # minus the plain steps saved


def test_trial_loss_grows_with_the_cost():
    ranks, budget = Ranks(), Budget(63, np.linspace(1, 1.2, 64))
    losses = [ShapeChooser(flat(x)).trial([ranks], 100, budget).loss for x in (0.5, 0.9, 1.5, 3.0)]
    assert losses == sorted(losses)
    assert losses[0] < 0.1 * losses[-1]
    assert not ShapeChooser(flat(0.9)).trial([ranks], 100, budget).too_slow
    nodes = Budget(63, np.linspace(1, 64, 64))  # a node takes as long as a plain step
    assert ShapeChooser(flat(0.5)).trial([ranks], 100, nodes).loss == pytest.approx(0.5)


def test_no_shape_without_budget():
    full = Budget(63, np.ones(2), base_tokens=2)  # one node for two sequences
    shapes = ShapeChooser(flat(0.01))
    assert shapes.choose([Ranks(), Ranks()], 100, full) is None
    assert shapes.trial([Ranks(), Ranks()], 100, full).loss == pytest.approx(0.01)
