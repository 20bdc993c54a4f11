"""What the cache holds after any sequence of steps equals a fresh prefill of the same tokens."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from daily import daily
from tiny_architectures import VOCABULARY, build
from tiny_int8 import quantised

from graft.errors import ContextLengthError
from graft.models.arena import Extent, OutOfRowsError
from graft.models.forward_panels import linear, project, run_layers
from graft.models.language_model import CONTEXT, LanguageModel, tree_slack
from graft.models.load import build_forward
from graft.tree.draft_tree import DraftTree, chain, from_paths, root_only

# int8: panels of weights that torchao quantised. Tolerances are times the largest compared.
TOLERANCE = {"panels": 0, "int8": 0, "lean": 1e-5, "hook": 1e-5, "hook-panels": 1e-5}
KINDS = list(TOLERANCE)
kinds = pytest.mark.parametrize("kind", KINDS)


pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def forward(kind: str, name: str):
    if kind == "int8":
        return build_forward(quantised(build(name)), name=name, kind="panels")[0]
    return build_forward(build(name), name=name, kind=kind)[0]


def model_of(kind: str, name: str = "llama", **options) -> LanguageModel:
    """A new model and arena; the compiled network behind it is shared by all tests."""
    network = forward(kind, name)
    network.storage.resize(0)
    options = {"context_length": 2048} | options
    return LanguageModel(network, vocabulary=VOCABULARY, **options)


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def random_tree(root: int, rng: np.random.Generator) -> DraftTree:
    paths = [rng.integers(3, 6, rng.integers(1, 7)).tolist() for _ in range(rng.integers(0, 7))]
    return from_paths(root, paths)


def random_path(tree: DraftTree, rng: np.random.Generator) -> list[int]:
    """From the root down to any node."""
    return np.flatnonzero(tree.ancestors()[rng.integers(len(tree))]).tolist()


def cached(model: LanguageModel, extent: Extent) -> torch.Tensor:
    rows = np.concatenate([row + np.arange(count) for row, count in extent.segments])
    return model.forward.storage.read(rows)


def assert_equal(kind: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[kind] * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def fresh(model: LanguageModel, tokens: list[int]) -> tuple[Extent, torch.Tensor]:
    extent = model.open(len(tokens))
    return extent, model.prefill(extent, tokens)


@pytest.mark.parametrize(
    ("kind", "name"),
    daily(
        product(KINDS, ["llama", "mistral"]),
        *product(["panels", "int8"], ["llama", "mistral"]),
        ("lean", "mistral"),
        ("hook", "mistral"),
    ),
)
def test_after_hundreds_of_random_steps_the_cache_equals_a_fresh_prefill(kind, name):
    rng, model = np.random.default_rng(1), model_of(kind, name)
    extents, texts = [model.open(1) for _ in range(3)], [[], [], []]
    for step in range(200):
        chosen = sorted(rng.choice(3, rng.integers(1, 4), replace=False))
        trees = [random_tree(int(rng.integers(3, VOCABULARY)), rng) for _ in chosen]
        model.score([extents[i] for i in chosen], trees)
        for i, tree in zip(chosen, trees, strict=True):
            path = random_path(tree, rng)
            model.commit(extents[i], path)
            texts[i] += tree.tokens[path].tolist()
        if step == 100:  # one ends in between, another takes its place
            model.close(extents[1])
            extents[1], texts[1] = model.open(1), []
    assert len(texts[0]) > 256  # beyond one split of keys
    for extent, text in zip(extents, texts, strict=True):
        assert extent.total == len(text)
        again, logits = fresh(model, text)
        assert_equal(kind, cached(model, extent), cached(model, again))
        more = random_tree(3, rng)
        scored = model.score([extent, again], [more, more])
        assert_equal(kind, scored[0], scored[1])
        assert logits.shape == (VOCABULARY,)
        model.close(again)


@kinds
def test_node_logits_equal_those_of_the_path_decoded_token_by_token(kind):
    model, rng = model_of(kind), np.random.default_rng(2)
    for context in (1, 15, 250, 255, 256):
        extent, _ = fresh(model, random_tokens(context, context))
        tree = random_tree(5, rng)
        logits = model.score([extent], [tree])[0]
        path = np.flatnonzero(tree.ancestors()[len(tree) - 1])  # a deepest node
        for node in path:
            alone = model.score([extent], [root_only(int(tree.tokens[node]))])[0][0]
            assert_equal(kind, logits[node], alone)
            model.commit(extent, [0])
        model.close(extent)


@kinds
@pytest.mark.parametrize("piece", [3, 16, 100, 255])
def test_prefill_in_pieces_equals_the_whole(kind, piece):
    model, text = model_of(kind), random_tokens(300, 3)
    whole, expected = fresh(model, text)
    extent = model.open(1)
    for start in range(0, len(text), piece):
        logits = model.prefill_chunk(extent, text[start : start + piece])
    assert_equal(kind, logits, expected)
    assert_equal(kind, cached(model, extent), cached(model, whole))


@kinds
def test_several_sequences_in_one_step_equal_one_by_one(kind):
    model, rng = model_of(kind), np.random.default_rng(4)
    extents = [fresh(model, random_tokens(n, n))[0] for n in (1, 40, 255, 300)]
    trees = [random_tree(3, rng), root_only(9), chain(random_tokens(70, 1)), random_tree(7, rng)]
    steps = model.steps
    together = model.score(extents, trees)
    assert model.steps == steps + 1
    for extent, tree, logits in zip(extents, trees, together, strict=True):
        assert logits.shape == (len(tree), VOCABULARY)
        assert_equal(kind, logits, model.score([extent], [tree])[0])


@kinds
@pytest.mark.parametrize("length", [1, 50, 256])
def test_a_shared_prefix_equals_a_sequence_of_its_own(kind, length):
    model, rng = model_of(kind, "mistral"), np.random.default_rng(5)
    common, tails = random_tokens(length, 0), [random_tokens(n, n) for n in (1, 20, 270)]
    prefix, _ = fresh(model, common)
    before = cached(model, prefix)
    for tail in tails:
        shared = model.open(len(tail), prefix)
        logits = model.prefill(shared, tail)
        own, expected = fresh(model, common + tail)
        # Keys of two segments are summed in another order, so not even panels promise all bits.
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        tree = random_tree(4, rng)
        scored = model.score([shared, own], [tree, tree])
        torch.testing.assert_close(scored[0], scored[1], rtol=0, atol=1e-4)
        assert shared.total == own.total == length + len(tail)
    assert torch.equal(cached(model, prefix), before)


@kinds
def test_scoring_leaves_no_trace_until_it_is_committed(kind):
    model = model_of(kind)
    extent, _ = fresh(model, random_tokens(30, 6))
    tree = from_paths(3, [[4, 5, 6], [7], [4, 8]])
    first = model.score([extent], [tree])[0]
    model.score([extent], [chain(random_tokens(60, 7))])
    assert extent.total == 30
    assert_equal(kind, model.score([extent], [tree])[0], first)


@pytest.mark.parametrize("kind", ["panels", "int8"])
@pytest.mark.parametrize("threads", [2, 3])
def test_panels_give_the_same_bits_with_any_number_of_threads(kind, threads):
    network = forward(kind, "llama")
    text, tree = random_tokens(260, 3), from_paths(3, [[4, 5, 6], [7], [4, 8]])
    results = []
    for network.threads in (1, threads):  # each thread owns a share of the columns
        model = model_of(kind)
        extent, logits = fresh(model, text)
        results.append((logits, model.score([extent], [tree])[0], cached(model, extent)))
    network.threads = 1
    assert all(torch.equal(one, many) for one, many in zip(*results, strict=True))


def test_several_threads_may_score_at_once():
    network, tree = forward("panels", "llama"), from_paths(3, [[4, 5, 6], [7], [4, 8]])
    network.threads = 2
    model = model_of("panels")
    extents = [fresh(model, random_tokens(30, seed))[0] for seed in range(4)]
    expected = [model.score([extent], [tree])[0] for extent in extents]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda extent: model.score([extent], [tree])[0], extents * 8)
        for i, result in enumerate(results):
            assert torch.equal(result, expected[i % 4])
    network.threads = 1


def test_other_threads_run_while_a_step_is_computed():
    for kernel in (run_layers, project, linear):
        assert kernel.targetoptions["nogil"]


@kinds
def test_the_context_length_is_enforced_by_position(kind):
    model = model_of(kind, context_length=20)
    extent, _ = fresh(model, random_tokens(18, 8))
    wide = from_paths(3, [[token] for token in range(3, 30)])  # 28 nodes, two positions
    assert tree_slack(wide) == 26
    model.score([extent], [wide])
    model.score([extent], [chain([3, 4])])
    with pytest.raises(ContextLengthError, match="21 tokens do not fit the model's context of 20"):
        model.score([extent], [chain([3, 4, 5])])
    with pytest.raises(ContextLengthError):
        model.prefill(model.open(21), random_tokens(21, 9))
    model.commit(extent, [0, 1])
    assert extent.total == 20
    with pytest.raises(ContextLengthError):
        model.score([extent], [root_only(3)])


def test_a_full_cache_refuses_one_sequence_and_keeps_the_others():
    model = model_of("panels", max_rows=50)
    extent, _ = fresh(model, random_tokens(20, 1))
    tree = from_paths(3, [[4, 5], [6]])
    before = model.score([extent], [tree])[0]
    with pytest.raises(OutOfRowsError):
        model.open(40)
    second = model.open(10)
    with pytest.raises(OutOfRowsError):
        model.prefill(second, random_tokens(30, 2))
    assert torch.equal(model.score([extent], [tree])[0], before)
    model.close(extent)
    model.prefill(second, random_tokens(30, 2))


def test_nothing_to_prefill_is_a_mistake():
    model = model_of("lean")
    with pytest.raises(AssertionError, match="nothing to prefill"):
        model.prefill(model.open(1), [])


def test_warming_up_runs_every_size_once_and_leaves_no_rows(monkeypatch):
    model = model_of("lean")
    sizes = []
    run = type(model.forward).run
    monkeypatch.setattr(type(model.forward), "sizes", (1, 4, 16))
    monkeypatch.setattr(
        type(model.forward),
        "run",
        lambda self, tokens, *rest: sizes.append(len(tokens)) or run(self, tokens, *rest),
    )
    model.warm_up()
    assert sorted(sizes) == [1, 2, 4, 5, 16, CONTEXT]  # the fewest and most nodes of each
    assert model.arena.taken == 0


def test_warming_up_for_batches_meets_trees_of_several_sizes(monkeypatch):
    model = model_of("lean")
    steps = set()
    run = type(model.forward).run
    monkeypatch.setattr(type(model.forward), "sizes", (1, 4, 16))

    def watched(self, tokens, layout, outputs):
        steps.add(tuple(np.diff(layout.first_node).tolist()))
        return run(self, tokens, layout, outputs)

    monkeypatch.setattr(type(model.forward), "run", watched)
    model.warm_up(4)
    batches = {(1,) * 4, (2, 2), (4,) * 4, (8, 8)}
    assert steps == {(1,), (2,), (4,), (5,), (16,), (CONTEXT,), *batches}
    assert model.arena.taken == 0
    model.arena.hold(96)  # no room for four: one sequence at least
    steps.clear()
    model.warm_up(4)
    assert steps == {(1,), (2,), (4,), (5,), (16,)}


def test_nodes_that_do_not_follow_their_sequence_are_refused(monkeypatch):
    model = model_of("lean")
    extent = model.open(8)
    monkeypatch.setattr(Extent, "segments", [(extent.start, 3)])
    with pytest.raises(AssertionError, match="must follow"):
        model.score([extent], [chain([1])])
    model.close(extent)
