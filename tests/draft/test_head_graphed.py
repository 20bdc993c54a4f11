"""Rounds from buffers, as a graph runs them, against rounds launched one operation at a time."""

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.head import BEAMS
from graft.draft.head_graphed import GraphedGrowth
from graft.draft.head_growth import Beam, LaunchedGrowth
from graft.models.head_load import run_head
from graft.models.head_runner import Text
from graft.sampling import Sampler, SamplingParams

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SAMPLED = SamplingParams(temperature=0.8, seed=4)
SMALL, NARROW = Beam((3, 2, 2), 4, keeps_all=True), Beam((1, 1), 2, keeps_all=True)


class Case:
    """Texts of several lengths that a target and its head have read."""

    def __init__(self, kind, device, lengths):
        network = tiny_network().to(device)
        self.model = tiny_engine(network, forward="lean" if device == "cpu" else "graphed").model
        more = {"window": 48} if kind == "longspec" else {}
        head = tiny_head(kind, network, knows=False, draft_vocabulary=60, **more)
        self.runner = run_head(head, self.model)
        self.memories, self.extents = [], []
        self.add(lengths)

    def add(self, lengths):
        random = np.random.default_rng(len(self.memories))
        for length in lengths:
            text = random.integers(3, 120, length + 1).tolist()
            extent = self.model.open(length)
            self.model.forward.keeps_features = True
            memory = self.runner.open()
            for first in range(0, length, self.model.chunk):
                piece = text[first : min(first + self.model.chunk, length)]
                self.model.prefill_chunk(extent, piece)
                if self.runner.window is None:
                    behind = text[first + 1 : first + 1 + len(piece)]
                    self.runner.read([Text(memory, behind, self.model.features(range(len(piece))))])
            if self.runner.window is not None:
                memory.begin(max(0, length + 1 - self.runner.window))
                self.runner.read([Text(memory, text[memory.end :])])
            self.memories.append(memory)
            self.extents.append(extent)


def sampler_of(params):
    return Sampler(params, [5], VOCABULARY)


def assert_same(pool, other):
    np.testing.assert_array_equal(pool.tokens, other.tokens)
    np.testing.assert_array_equal(pool.parents, other.parents)
    np.testing.assert_allclose(pool.logs, other.logs, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_from_buffers_are_rounds(kind, device):
    """Greedy ones alone, then with sampled ones beside them and a place left empty."""
    case = Case(kind, device, [130, 5, 47])
    graphed, launched = GraphedGrowth(case.runner), LaunchedGrowth(case.runner)
    samplers = [sampler_of(SamplingParams()), sampler_of(SAMPLED), None]
    for count in (1, 3):
        given = case.memories[:count], case.extents[:count], samplers[:count], SMALL
        assert_same(graphed(*given), launched(*given))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_papers_beams_are_captured(kind):
    case = Case(kind, "cuda", [5, 480, 300])
    graphed, launched = GraphedGrowth(case.runner), LaunchedGrowth(case.runner)
    beam, _ = BEAMS[kind]
    for count in (1, 2, 3):
        given = case.memories[:count], case.extents[:count], [None] * count, beam
        assert_same(graphed(*given), launched(*given))
    assert graphed.capturing


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_moved_are_found_again(device):
    case = Case("eagle2", device, [20])
    graphed, launched = GraphedGrowth(case.runner), LaunchedGrowth(case.runner)
    for _ in range(2):
        given = case.memories[:1], case.extents[:1], [None], NARROW
        assert_same(graphed(*given), launched(*given))
        case.add([60, 60])  # the storages grow
    assert case.runner.storage.rows > 128


def test_penalties_are_left_to_the_host():
    case = Case("eagle2", "cpu", [20])
    params = SamplingParams(presence_penalty=1.0, logit_bias={int(case.runner.tokens[0]): -50.0})
    given = case.memories, case.extents, [sampler_of(params)], SMALL
    graphed = GraphedGrowth(case.runner)
    assert_same(graphed(*given), LaunchedGrowth(case.runner)(*given))
    assert int(case.runner.tokens[0]) not in graphed(*given).tokens[0, 1:5]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_waits_for_the_device_only_at_its_end(kind):
    case = Case(kind, "cuda", [20, 40])
    graphed = GraphedGrowth(case.runner)
    given = case.memories, case.extents, [sampler_of(SAMPLED), None], SMALL
    expected = graphed(*given)
    torch.cuda.synchronize()
    found = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        shape = next(iter(graphed._prepared))
        prepared = graphed._prepared[shape]
        prepared.inputs.fill(case.memories, given[2], graphed._plans(*given[:2], SMALL))
        found.append(prepared.run())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found[0][0, 0].long().tolist() == expected.tokens[0, 1:].tolist()
