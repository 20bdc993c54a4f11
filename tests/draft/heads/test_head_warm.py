"""Shapes are run once before anybody waits for them."""

import pytest
from tiny import costs_of, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.heads.growth import LaunchedGrowth
from graft.draft.heads.head import BEAMS, HeadHelper, growth_for
from graft.draft.heads.warm import warm_shapes
from graft.draft.heads.worth import SHAPES, TRIAL
from graft.models.heads.load import run_head


@pytest.mark.parametrize("kind", KINDS)
def test_every_shape_that_may_be_chosen_is_run(kind, monkeypatch):
    network = tiny_network()
    runner = run_head(tiny_head(kind, network), tiny_engine(network).model, packed=True)
    seen, begin = [], LaunchedGrowth.begin

    def watched(growth, asked, beam):
        seen.append((beam, asked[0].sampler is None))
        return begin(growth, asked, beam)

    monkeypatch.setattr(LaunchedGrowth, "begin", watched)
    warm_shapes(HeadHelper(runner, growth_for(runner), costs_of(0.1)))
    wanted = {BEAMS[kind][0], TRIAL, *SHAPES}
    assert set(seen) == {(beam, greedy) for beam in wanted for greedy in (True, False)}
    assert runner.arena.taken == runner.model.arena.taken == 0
