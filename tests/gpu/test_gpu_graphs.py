"""Steps by captured graphs: run with `pytest -m gpu`."""

import numpy as np
import pytest
import torch
from tiny import tiny_network

from graft.models.language_model import LanguageModel
from graft.models.load import build_forward
from graft.tree.draft_tree import DraftTree, chain, from_paths, root_only

pytestmark = pytest.mark.gpu
KINDS = ["graphed", "captured", "hook"]
VOCABULARY = 128


def model_of(kind: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    network = tiny_network(hidden=128, head_dim=64, heads=4).cuda()
    forward, name = build_forward(network, name="tiny", dtype=dtype, kind=kind)
    assert name == kind
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=1 << 18)
    model.arena.hold(8192)
    return model


def random_tokens(count: int, rng: np.random.Generator) -> list[int]:
    return rng.integers(3, VOCABULARY, count).tolist()


def random_tree(root: int, rng: np.random.Generator) -> DraftTree:
    paths = [rng.integers(3, 6, rng.integers(1, 7)).tolist() for _ in range(rng.integers(0, 7))]
    return from_paths(root, paths)


@pytest.mark.parametrize("kind", KINDS)
def test_after_hundreds_of_steps_the_cache_equals_a_fresh_prefill(kind):
    rng, model = np.random.default_rng(1), model_of(kind)
    extents, texts = [model.open(900) for _ in range(3)], [[], [], []]
    for _ in range(300):
        chosen = sorted(rng.choice(3, rng.integers(1, 4), replace=False))
        trees = [random_tree(int(rng.integers(3, VOCABULARY)), rng) for _ in chosen]
        model.score([extents[i] for i in chosen], trees)
        for i, tree in zip(chosen, trees, strict=True):
            path = np.flatnonzero(tree.ancestors()[rng.integers(len(tree))]).tolist()
            model.commit(extents[i], path)
            texts[i] += tree.tokens[path].tolist()
    assert min(map(len, texts)) > 300
    storage = model.arena.storage
    for extent, text in zip(extents, texts, strict=True):
        again = model.open(len(text))
        model.prefill(again, text)
        torch.testing.assert_close(
            storage.read(extent.rows), storage.read(again.rows), rtol=1e-4, atol=1e-4
        )
        model.close(again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_step_equals_a_launched_one(dtype):
    rng, model = np.random.default_rng(2), model_of("graphed", dtype)
    forward = model.forward
    extents = [model.open(2600) for _ in range(2)]
    for extent, count in zip(extents, (500, 30), strict=True):
        model.prefill(extent, random_tokens(count, rng))
    for nodes in (1, 2, 3, 7, 20, 60, 300, 700, 2000):
        trees = [chain(random_tokens(nodes, rng)), random_tree(5, rng)]
        captured = torch.cat(model.score(extents, trees)).clone()
        forward.capturing = False
        forward._prepared.clear()
        launched = torch.cat(model.score(extents, trees))
        forward.capturing = True
        forward._prepared.clear()
        assert torch.equal(captured, launched)


@pytest.mark.parametrize("count", [257, 640, 1000, 2048])
def test_a_prompt_read_by_a_graph_leaves_what_a_launched_step_leaves(count, monkeypatch):
    rng, model = np.random.default_rng(4), model_of("graphed")
    text = random_tokens(count, rng)
    found = []
    for _ in range(2):
        base = model.open(count)
        model.prefill(base, text[:100])
        extent = model.open(count, base, 64)  # what it sees lies in two places
        logits = model.prefill(extent, text[64:])
        found.append((logits.clone(), model.arena.storage.read(extent.rows[64:])))
        monkeypatch.setattr(type(model.forward), "sizes", (256,))  # nothing larger is captured
    for captured, launched in zip(*found, strict=True):
        torch.testing.assert_close(captured, launched, rtol=1e-4, atol=1e-4)


def test_graphs_are_captured_once_and_serve_every_length():
    rng, model = np.random.default_rng(3), model_of("graphed")
    extent = model.open(3000)
    model.prefill(extent, random_tokens(10, rng))
    for _ in range(30):
        model.prefill_chunk(extent, random_tokens(60, rng))
        model.score([extent], [root_only(3)])
    assert {shape.nodes for shape in model.forward._prepared} == {64, 1, 16}
    assert len(model.forward._prepared) <= 6  # longer contexts have more splits
    assert all(each.graph for each in model.forward._prepared.values())


def test_a_step_that_cannot_be_captured_is_launched_and_says_so_once(monkeypatch, caplog):
    model = model_of("graphed")
    expected = model.score([model.open(9)], [root_only(3)])[0].clone()
    model.forward._prepared.clear()

    class Broken(torch.cuda.CUDAGraph):
        def capture_begin(self, *args, **options):
            raise RuntimeError("no graphs today")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Broken)
    for _ in range(2):
        launched = model.score([model.open(9)], [root_only(3)])[0]
        assert torch.equal(launched, expected)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "no graphs today" in said[0]


def test_no_mask_over_the_context_is_ever_made():
    """What a step takes besides the cache does not grow with the context."""
    network = tiny_network(layers=1, hidden=128, head_dim=64, heads=4).cuda()
    forward, _ = build_forward(network, name="tiny", dtype=torch.bfloat16)
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=1 << 18)
    model.arena.hold((1 << 17) + 128)
    extent = model.open(1 << 17)
    taken = []
    for length in (1 << 10, (1 << 17) - 64):
        extent.length = length
        model.score([extent], [chain([5] * 64)])
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model.score([extent], [chain([5] * 64)])
        torch.cuda.synchronize()
        taken.append(torch.cuda.max_memory_allocated() - before)
    assert taken[0] == taken[1]
