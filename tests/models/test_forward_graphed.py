"""The forward for GPUs, its kernels interpreted: what it computes, how it pads, what it captures.

Capturing itself needs a GPU: tests/gpu.
"""

import numpy as np
import pytest
import torch
from tiny_architectures import VOCABULARY, build, config_of

from graft.models.forward import LeanForward
from graft.models.language_model import LanguageModel
from graft.models.llama_shape import read_llama
from graft.tree.draft_tree import chain, from_paths, root_only

pytest.importorskip("triton", reason="Triton is not installed")
from graft.models.forward_graphed import GraphedForward  # noqa: E402
from graft.models.forward_triton import TritonLayers  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("compiled there: pytest -m gpu", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("one_thread", "small_buckets")
TREE = from_paths(5, [[3, 4, 5], [3, 6], [7]])


def models(name: str, layers: int = 2) -> tuple[LanguageModel, LanguageModel]:
    """The same network behind the forward for GPUs and behind the plain one."""
    config = config_of(name)
    config.num_hidden_layers = layers
    read = read_llama(build(name, config))
    made = (GraphedForward(TritonLayers(*read)), LeanForward(*read))
    return tuple(LanguageModel(f, vocabulary=VOCABULARY, context_length=2048) for f in made)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def assert_close(both: list[list[torch.Tensor]]) -> None:
    for ours, plain in zip(*both, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3"])
def test_it_computes_what_the_plain_forward_computes(name):
    results = []
    for model in models(name, layers=1):
        extent = model.open(64)
        results.append([model.prefill(extent, tokens(9)), *model.score([extent], [TREE])])
    assert_close(results)


@pytest.mark.parametrize("kind", ["graphed", "plain"])
def test_tokens_that_only_the_device_knows(kind):
    """The step is laid out without them."""
    model = dict(zip(("graphed", "plain"), models("llama", layers=1), strict=True))[kind]
    results = []
    for drawn in (False, True):
        model.forward.asynchronous = drawn
        extents = [model.open(64), model.open(16)]
        model.prefill(extents[0], tokens(9))
        model.prefill(extents[1], tokens(3, 1))
        logits = []
        for level in range(2):
            come = tokens(2, 5 + level)
            if drawn:
                logits.append(model.score_drawn(extents, torch.tensor(come)).clone())
            else:
                scored, _ = model.score_all(extents, [root_only(token) for token in come])
                logits.append(scored.clone())
            model.commit_all([(extent, [0]) for extent in extents])
        rows = np.concatenate([extent.rows for extent in extents])
        results.append([*logits, model.arena.storage.read(rows)])
        for extent in extents:
            model.close(extent)
    for ours, other in zip(*results, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=0)


def test_steps_of_several_sequences_and_what_they_leave_in_the_cache():
    results = []
    for model in models("llama"):
        first, second = model.open(64), model.open(16)
        logits = [model.prefill(first, tokens(9)), model.prefill(second, tokens(3, 1))]
        scored = model.score([first, second], [TREE, root_only(8)])
        logits += [each.clone() for each in scored]  # they are good until the next step
        model.commit(first, [0, 1, 4])
        model.commit(second, [0])
        logits += model.score([second, first], [TREE, chain([9, 10])], last_only=[False, True])
        rows = np.concatenate([first.rows, second.rows])
        results.append([*logits, model.arena.storage.read(rows)])
    assert_close(results)


def test_few_shapes_serve_all_steps_and_growing_forgets_them():
    model, _ = models("llama", layers=1)
    extent = model.open(40)
    seen = model.forward._prepared
    model.prefill(extent, tokens(13))
    assert [shape.nodes for shape in seen] == [16]  # larger than any size
    for nodes in (5, 8):
        model.score([extent], [chain(tokens(nodes))])
    assert [shape.nodes for shape in seen] == [16, 8]
    for nodes in (9, 11):  # pieces of prompts
        model.prefill_chunk(extent, tokens(nodes))
    model.score([extent], [root_only(3)])
    assert [shape.nodes for shape in seen] == [16, 8, 12, 1]
    model.open(400)
    model.score([extent], [root_only(3)])
    assert [shape.nodes for shape in seen] == [1]


@pytest.mark.parametrize("nodes", [5, 10])  # padded to eight and to twelve
def test_padding_leaves_the_cache_alone(nodes):
    model, _ = models("llama", layers=1)
    extent = model.open(100)
    model.prefill(extent, tokens(4))
    storage = model.arena.storage
    storage.kv[:, :, :, 4:] = 7.0
    model.score([extent], [chain(tokens(nodes))])
    assert (storage.kv[:, :, :, 4 + nodes :] == 7.0).all()
    assert (storage.kv[:, :, :, 4 : 4 + nodes] != 7.0).all()


@pytest.mark.parametrize("every", [True, False])
def test_large_steps_return_selected_logits_and_all_features(every):
    results = []
    for model in models("llama", layers=1):
        first, second = model.open(64), model.open(16)
        model.prefill(first, tokens(3))
        prefix = model.open(30, first, 2)  # two segments
        trees = [chain(tokens(5, 1)), TREE]
        last = None if every else [True, False]
        model.keep_features([-1])
        logits = model.score([prefix, second], trees, last_only=last)
        results.append([*logits, model.features(range(11))])
    assert_close(results)
