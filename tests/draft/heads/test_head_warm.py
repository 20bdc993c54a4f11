"""Every shape is run once at start-up."""

from itertools import product

import pytest
from daily import daily
from tiny import costs_of, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.heads.costs import warm_shapes
from graft.draft.heads.growth import LaunchedGrowth
from graft.draft.heads.head import BEAMS, DraftHead, growth_for
from graft.draft.heads.shapes import SHAPES, TRIAL
from graft.models.heads.load import run_head

COUNTS = {1: {1}, 2: {1, 2}, 5: {1, 2, 4, 5}, 20: {1, 2, 4, 8, 16}}  # by sequences


@pytest.mark.parametrize(
    ("kind", "sequences"),
    daily(product(KINDS, COUNTS), ("eagle2", 1), ("eagle2", 5), ("longspec", 2)),
)
def test_warm_up_runs_every_shape(kind, sequences, monkeypatch):
    network = tiny_network()
    runner = run_head(tiny_head(kind, network), tiny_engine(network).model, packed=True)
    seen, begin = [], LaunchedGrowth.begin

    def watched(growth, inputs, beam):
        seen.append((beam, inputs[0].sampler is None, len(inputs)))
        return begin(growth, inputs, beam)

    monkeypatch.setattr(LaunchedGrowth, "begin", watched)
    warm_shapes(DraftHead(runner, growth_for(runner), costs_of(0.1)), sequences)
    expected = product({BEAMS[kind][0], TRIAL, *SHAPES}, (True, False), COUNTS[sequences])
    assert set(seen) == set(expected)
    assert runner.arena.taken == runner.model.arena.taken == 0
