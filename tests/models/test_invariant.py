"""Invariant mode in 16 bits: the same bits, whatever else is in the step."""

from functools import cache

import numpy as np
import pytest
import torch
from daily import daily
from test_load import one_line, save
from tiny_architectures import VOCABULARY, build

from graft.errors import UnsupportedModelError
from graft.kernels.panels import LANES
from graft.models.invariant import InvariantForward, SpareRows, check_invariant
from graft.models.language_model import LanguageModel
from graft.models.load import build_forward, load_model
from graft.models.storage import RowStorage
from graft.tree.draft_tree import chain, from_paths, root_only

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = [("llama", "lean"), ("mistral", "lean"), ("qwen3", "lean"), ("llama", "hook"),
         ("gemma2", "hook"), ("phi3", "hook"), ("gemma2", "hook-panels")]  # fmt: skip
cases = pytest.mark.parametrize(("name", "kind"), CASES)


@cache
def forward(name: str, kind: str, dtype: torch.dtype = torch.bfloat16) -> InvariantForward:
    built, used = build_forward(build(name), name=name, kind=kind, dtype=dtype, invariant=True)
    assert used == kind
    return built


def model_of(name: str, kind: str, dtype: torch.dtype = torch.bfloat16) -> LanguageModel:
    network = forward(name, kind, dtype)
    network.storage.resize(0)
    return LanguageModel(network, vocabulary=VOCABULARY, context_length=4096)


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def random_tree(seed: int, paths: int = 5):
    rng = np.random.default_rng(seed)
    return from_paths(5, [rng.integers(3, 6, rng.integers(1, 9)).tolist() for _ in range(paths)])


def cached(model, extent) -> torch.Tensor:
    rows = np.concatenate([row + np.arange(count) for row, count in extent.segments])
    return model.forward.storage.read(rows)


def assert_path_token_by_token(model, extent, tree, logits) -> None:
    """The tree's deepest path, decoded plainly on top of the same tokens, has these logits."""
    committed = extent.length
    for node in np.flatnonzero(tree.ancestors()[-1]):
        assert torch.equal(logits[node], model.prefill_chunk(extent, [int(tree.tokens[node])]))
    model.arena.truncate(extent, committed)


# Where blocks end matters with a window and without, not for every architecture.
EVERYWHERE = ("llama", "mistral", "gemma2")
BORDERS = [(*case, context) for case in CASES for context in (1, 15, 251)
           if context == 251 or case[0] in EVERYWHERE]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "context"),
    daily(BORDERS, *(case for place, case in enumerate(BORDERS) if place % 2 == 0)),
)
def test_a_tree_has_the_bits_of_its_paths(name, kind, context):
    model = model_of(name, kind)
    extent = model.open(context)
    model.prefill(extent, random_tokens(context, context))
    tree = random_tree(context, paths=9)
    assert len(tree) > model.forward.slab  # branches cross from one slab into the next
    logits = model.score([extent], [tree])[0]
    assert logits.dtype == torch.float32
    assert_path_token_by_token(model, extent, tree, logits)


@pytest.mark.parametrize("kind", ["lean", "hook"])
def test_a_context_of_several_groups_of_blocks(kind):
    model = model_of("llama", kind)
    extent = model.open(510)
    model.prefill(extent, random_tokens(510, 0))
    tree = random_tree(3)
    logits = model.score([extent], [tree])[0]
    assert_path_token_by_token(model, extent, tree, logits)  # from one group into the next
    short = model.open(40)
    model.prefill(short, random_tokens(40, 1))
    alone = model.score([short], [tree])[0]
    together = model.score([short, extent], [tree, tree])  # the short one is given a second group
    assert torch.equal(together[0], alone)
    assert torch.equal(together[1], logits)


@cases
def test_neighbours_do_not_change_a_bit(name, kind):
    model = model_of(name, kind)
    extents = [model.open(64) for _ in range(3)]
    for i, extent in enumerate(extents):
        model.prefill(extent, random_tokens(7 + 20 * i, i))
    trees = [chain(random_tokens(11, 4)), root_only(9), random_tree(5)]
    together = model.score(extents, trees)
    for extent, tree, logits in zip(extents, trees, together, strict=True):
        assert torch.equal(model.score([extent], [tree])[0], logits)


@cases
def test_the_cache_has_the_bits_of_a_fresh_prefill(name, kind):
    rng, model = np.random.default_rng(1), model_of(name, kind)
    extent, text = model.open(1), []
    for seed in range(15):
        tree = random_tree(seed)
        path = np.flatnonzero(tree.ancestors()[rng.integers(len(tree))]).tolist()
        model.score([extent], [tree])
        model.commit(extent, path)
        text += tree.tokens[path].tolist()
    again = model.open(len(text))
    model.prefill(again, text)
    assert torch.equal(cached(model, extent), cached(model, again))


@pytest.mark.parametrize("kind", ["lean", "hook"])
@pytest.mark.parametrize("length", [1, 20])
def test_a_shared_prefix_has_the_bits_of_a_sequence_of_its_own(kind, length):
    model, common, tail = model_of("llama", kind), random_tokens(length, 0), random_tokens(9, 1)
    prefix, own = model.open(length), model.open(length + 9)
    model.prefill(prefix, common)
    shared = model.open(9, prefix)
    assert torch.equal(model.prefill(shared, tail), model.prefill(own, common + tail))
    tree = random_tree(2)
    assert torch.equal(*model.score([shared, own], [tree, tree]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes(dtype):
    model = model_of("qwen2", "lean", dtype)
    extent = model.open(30)
    model.prefill(extent, random_tokens(30, 0))
    tree = random_tree(7)
    assert_path_token_by_token(model, extent, tree, model.score([extent], [tree])[0])


def test_any_size_of_slab_and_group_gives_a_node_one_value():
    """Not the same between sizes, but for each size the same in every company."""
    for slab, group in ((1, 1), (5, 2), (24, 4)):
        network = forward("llama", "lean").forward
        resized = InvariantForward(network, device=torch.device("cpu"), slab=slab, group=group)
        model = LanguageModel(resized, vocabulary=VOCABULARY, context_length=512)
        extent = model.open(20)
        model.prefill(extent, random_tokens(20, 0))
        tree = random_tree(1)
        assert_path_token_by_token(model, extent, tree, model.score([extent], [tree])[0])
    forward.cache_clear()  # the storage has other spare rows now


def test_panels_are_invariant_as_they_are():
    built, used = build_forward(build("llama"), name="llama", invariant=True)
    assert used == "panels"
    assert not isinstance(built, InvariantForward)


def test_a_checkpoint_is_loaded_invariant(tmp_path):
    folder = save(tmp_path / "phi3", "phi3")
    loaded = load_model(str(folder), dtype="bf16", device="cpu", invariant=True)
    assert isinstance(loaded.model.forward, InvariantForward)
    assert loaded.forward_name in ("hook", "hook-panels")
    assert loaded.is_exact


class Nervous:
    """A forward whose logits depend a little on how many other tokens are in the slab."""

    feature_layers = frozenset()

    def __init__(self, inner):
        self.inner, self.storage = inner, inner.storage

    def run(self, tokens, layout, outputs):
        return self.inner.run(tokens, layout, outputs) + 1e-6 * np.count_nonzero(tokens)


def test_a_network_that_is_not_invariant_is_refused_in_one_line():
    network = forward("llama", "lean", torch.float32)
    nervous = InvariantForward(Nervous(network.forward), device=torch.device("cpu"))
    with pytest.raises(UnsupportedModelError, match="nervous cannot be run invariant") as error:
        check_invariant(nervous, vocabulary=VOCABULARY, name="nervous")
    one_line(error)
    forward.cache_clear()


def test_experts_are_refused_in_one_line():
    with pytest.raises(
        UnsupportedModelError, match="gpt-oss cannot be run invariant: its"
    ) as error:
        build_forward(build("gpt-oss"), name="gpt-oss", dtype=torch.bfloat16, invariant=True)
    one_line(error)


def test_padding_rows_are_not_allocated():
    storage = SpareRows(RowStorage(1, 1, 2, torch.float32, torch.device("cpu")), LANES)
    assert storage.rows == 0
    storage.resize(8)
    assert storage.inner.rows == 8 + LANES
    content = torch.arange(32.0).reshape(2, 1, 1, 8, 2)
    storage.write(np.arange(8), content)
    storage.inner.write(np.arange(8, 24), torch.ones(2, 1, 1, 16, 2))  # nodes that fill up slabs
    storage.resize(40)
    assert torch.equal(storage.read(np.arange(8)), content)
    assert not storage.read(np.arange(8, 40)).any()  # new rows hold zeros
    storage.move(np.array([1]), np.array([30]))
    assert torch.equal(storage.read(np.array([30])), content[:, :, :, [1]])
    storage.resize(4)
    assert torch.equal(storage.read(np.arange(4)), content[:, :, :, :4])
