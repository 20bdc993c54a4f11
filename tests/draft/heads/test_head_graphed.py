"""Drafts from a graph's buffers equal drafts launched one operation at a time."""

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.heads.graphed import GraphedGrowth
from graft.draft.heads.growth import Beam, DraftInput, LaunchedGrowth
from graft.draft.heads.head import BEAMS
from graft.models.heads.load import run_head
from graft.models.heads.runner import TREE_ROWS, Text
from graft.sampling import Sampler, SamplingParams

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SAMPLED = SamplingParams(temperature=0.8, seed=4)
SMALL, NARROW = Beam((3, 2), 4, keeps_all=True), Beam((1, 1), 2, keeps_all=True)


class Case:
    """Texts of several lengths, prefilled by a target and its head."""

    def __init__(self, kind, device, lengths, **options):
        network = tiny_network().to(device)
        self.model = tiny_engine(network, forward="lean" if device == "cpu" else "graphed").model
        more = options | ({"window": 48} if kind == "longspec" else {})
        head = tiny_head(kind, network, knows=False, draft_vocabulary=60, **more)
        self.runner = run_head(head, self.model)
        self.lengths, self.texts, self.extents = [], [], []
        self.add(lengths)

    def add(self, lengths):
        random = np.random.default_rng(len(self.texts))
        for length in lengths:
            text = random.integers(3, 120, length + 1).tolist()
            extent = self.model.open(length)
            features, layers = [], self.runner.config.feature_layers
            for first in range(0, length, self.model.chunk):
                chunk = text[first : min(first + self.model.chunk, length)]
                self.model.prefill_chunk(extent, chunk)
                if layers:
                    features.append(self.model.features(range(len(chunk)), layers))
            self.texts.append((text, torch.cat(features or [torch.empty(length, 0)])))
            self.extents.append(extent)

    def inputs(self, samplers, new_tokens=1):
        """The first texts, prefilled again except the last tokens."""
        found = []
        for sampler, (text, features), extent in zip(
            samplers, self.texts, self.extents, strict=False
        ):
            memory, left = self.runner.open(text), min(new_tokens, len(features))
            if self.runner.window is None:
                self.read(memory, text[1 : len(text) - left], features[: len(features) - left])
                last = Text(memory, text[-left:], features[-left:])
            else:
                memory.begin(max(0, len(text) - self.runner.window))
                left = min(left, len(text) - memory.end)
                self.read(memory, text[memory.end : len(text) - left], None)
                last = Text(memory, text[-left:])
            found.append(DraftInput(last, extent, sampler))
        return found

    def read(self, memory, tokens, features):
        if tokens:
            self.runner.read([Text(memory, tokens, features)])

    def both(self, samplers, beam, graphed=None, new_tokens=1):
        """Candidates from buffers and from single launches."""
        graphed = graphed or GraphedGrowth(self.runner)
        return (
            growth.begin(self.inputs(samplers, new_tokens), beam)()
            for growth in (graphed, LaunchedGrowth(self.runner))
        )


def sampler_of(params):
    return Sampler(params, [5], VOCABULARY)


def assert_same(found, other):
    np.testing.assert_array_equal(found.tokens, other.tokens)
    np.testing.assert_array_equal(found.parents, other.parents)
    np.testing.assert_allclose(found.logs, other.logs, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("new_tokens", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_drafts_from_buffers_equal_launched_drafts(kind, device, new_tokens):
    """Greedy, sampled and padding sequences in one batch; few and many new tokens."""
    case = Case(kind, device, [60, 5, 20])
    samplers = [sampler_of(SamplingParams()), sampler_of(SAMPLED), None]
    assert_same(*case.both(samplers, SMALL, new_tokens=new_tokens))


@pytest.mark.parametrize("device", DEVICES)
def test_drafts_on_shared_rows(device):
    """Two sequences on the rows of a finished one, the second without tokens of its own yet."""
    case = Case("eagle3", device, [300, 257])
    case.model.prefixes.use(max_rows=4096)
    case.texts[1] = case.texts[0][0][:258], case.texts[0][1][:257]
    fresh = case.inputs([None, None])
    expected = LaunchedGrowth(case.runner).begin(fresh, SMALL)()
    for each, (text, _) in zip(fresh, case.texts, strict=True):
        case.runner.close(each.text.memory, text)
    for growth in (GraphedGrowth(case.runner), LaunchedGrowth(case.runner)):
        shared = []
        for each, (text, features) in zip(fresh, case.texts, strict=True):
            memory = case.runner.open(text, 256)
            assert (memory.extent.shared, memory.end) == (256, 256)
            case.read(memory, text[257:-1], features[256:-1])
            shared.append(DraftInput(Text(memory, text[-1:], features[-1:]), each.extent, None))
        assert_same(growth.begin(shared, SMALL)(), expected)
        for each in shared:
            case.runner.close(each.text.memory)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("longspec", {"cross_layers": 2}),
        ("eagle3", {"norm_before_residual": True, "own_output": False}),
        ("mtp", {"attention_bias": True, "head_norms": True}),
    ],
)
@pytest.mark.slow
def test_drafts_of_variants_equal_launched_drafts(kind, options, device):
    case = Case(kind, device, [130, 5], **options)
    assert_same(*case.both([None, sampler_of(SAMPLED)], SMALL, new_tokens=4))


def test_large_batches_are_drafted_in_several_runs(monkeypatch):
    monkeypatch.setattr("graft.draft.heads.graphed.BATCHES", (1, 2))
    case = Case("eagle2", "cpu", [20, 5, 9])
    assert_same(*case.both([None, sampler_of(SAMPLED), None], NARROW))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "layers"), [("eagle3", 1), ("eagle2", 1), ("longspec", 1), ("longspec", 2)]
)
def test_the_papers_beams_are_captured(kind, layers):
    case = Case(kind, "cuda", [5, 700, 300], cross_layers=layers)
    graphed = GraphedGrowth(case.runner)
    beam, _ = BEAMS[kind]
    for count in (1, 2, 3):
        assert_same(*case.both([None] * count, beam, graphed))
    assert graphed.capturing


@pytest.mark.slow
def test_the_largest_beam_fills_all_draft_rows():
    beam, _ = BEAMS["eagle3"]
    assert sum(beam.rows[1:]) == TREE_ROWS
    assert_same(*Case("eagle3", "cpu", [20]).both([None], beam))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.slow
def test_graphs_are_dropped_when_storage_moves(device):
    case = Case("eagle2", device, [20])
    graphed = GraphedGrowth(case.runner)
    for _ in range(2):
        assert_same(*case.both([None], NARROW, graphed))
        case.add([60, 60])  # the storages grow
        case.inputs([None] * len(case.texts))
    assert case.runner.storage.rows > 128


def test_penalties_run_without_a_graph():
    case = Case("eagle2", "cpu", [20])
    banned = int(case.runner.tokens[0])
    params = SamplingParams(presence_penalty=1.0, logit_bias={banned: -50.0})
    found, other = case.both([sampler_of(params)], SMALL)
    assert_same(found, other)
    assert banned not in found.tokens[0, 1:5]


@pytest.mark.slow
def test_rows_written_by_a_draft_are_used_by_the_next():
    """Two drafts with a new token each, against one with both."""
    case = Case("eagle2", "cpu", [40])
    graphed = GraphedGrowth(case.runner)
    (given,) = case.inputs([None], new_tokens=2)
    for part in (slice(0, 1), slice(1, 2)):
        text = Text(given.text.memory, given.text.tokens[part], given.text.features[part])
        found = graphed.begin([DraftInput(text, given.extent, None)], NARROW)()
    assert_same(found, LaunchedGrowth(case.runner).begin(case.inputs([None]), NARROW)())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_draft_waits_for_the_device_only_at_its_end(kind):
    case = Case(kind, "cuda", [20, 40])
    graphed = GraphedGrowth(case.runner)
    samplers = [sampler_of(SAMPLED), None]
    expected = graphed.begin(case.inputs(samplers), SMALL)()
    inputs = case.inputs(samplers)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = graphed.begin(inputs, SMALL)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(pending(), expected)
