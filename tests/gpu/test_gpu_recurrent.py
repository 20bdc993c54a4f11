"""Recurrent layers in captured graphs: run with `pytest -m gpu`."""

import numpy as np
import pytest
import torch
from tiny import END, tiny_engine
from tiny_architectures import VOCABULARY, build, config_of, repeating

from graft.models.forward_choice import build_forward
from graft.models.language_model import LanguageModel
from graft.sampling import SamplingParams
from graft.tree.draft_tree import DraftTree, chain, from_paths, root_only

pytestmark = pytest.mark.gpu
# Large enough for matrix units.
SIZES = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
MORE = {
    "qwen3-next": {"linear_key_head_dim": 64, "linear_value_head_dim": 128},
    "kimi-linear": {"linear_head_dim": 64},
    "granite-hybrid": {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 128},
    "lfm2": {},
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
NAMES = pytest.mark.parametrize("name", ["qwen3-next", "granite-hybrid", "lfm2"])
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}  # of the largest logit


def model_of(name: str, dtype: torch.dtype, kind: str = "captured") -> LanguageModel:
    config = config_of(name, **SIZES, **MORE[name], max_position_embeddings=4096)
    network = build(name, config)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter *= 0.3  # wide numbers make roundings grow from layer to layer
    forward, used = build_forward(network.cuda(), name=name, dtype=dtype, kind=kind)
    assert used == kind
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=4096, chunk=1024)
    model.arena.hold(12_288)
    return model


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def random_tree(seed: int) -> DraftTree:
    rng = np.random.default_rng(seed)
    return from_paths(5, [rng.integers(3, 6, rng.integers(1, 8)).tolist() for _ in range(6)])


def steps_of(model: LanguageModel) -> list[torch.Tensor]:
    """Logits of prompts, trees, committed paths and prompts beside drafts."""
    extents = [model.open(3000) for _ in range(3)]
    found = [model.prefill(extent, random_tokens(n, n)).clone()[None]
             for extent, n in zip(extents, (3, 70, 1500), strict=True)]  # fmt: skip
    for step in range(12):
        trees = [random_tree(step), root_only(7), chain(random_tokens(1 + 5 * step, step))]
        found.append(model.score_all(extents, trees)[0].clone())
        for extent, tree in zip(extents, trees, strict=True):
            path = np.flatnonzero(tree.ancestors()[len(tree) // 2]).tolist()
            model.commit(extent, path)
    prompt = model.open(600)
    trees = [chain(random_tokens(500, 1)), random_tree(99)]
    both = model.score_all([prompt, extents[0]], trees, last_only=[True, False])
    return [*found, both[0].clone()]


@DTYPES
@NAMES
def test_graphs_compute_what_launched_kernels_compute(name, dtype):
    model = model_of(name, dtype)
    captured = steps_of(model)
    assert model.forward.capturing
    assert all(each.graph for each in model.forward._prepared.values())
    model = model_of(name, dtype)
    model.forward.capturing = False
    for graph, launched in zip(captured, steps_of(model), strict=True):
        assert torch.equal(graph, launched)


@DTYPES
@pytest.mark.parametrize("name", MORE)
def test_graphs_compute_what_transformers_modules_compute(name, dtype):
    both = (steps_of(model_of(name, dtype, kind)) for kind in ("captured", "hook"))
    for captured, hooked in zip(*both, strict=True):
        largest = float(hooked.abs().max())
        off = (captured - hooked).abs() > TOLERANCE[dtype] * largest
        # In 16 bits a node may choose another expert with as good a score, and its children follow
        assert off.float().mean() <= (0.05 if dtype == torch.bfloat16 else 0), off.sum(-1)


@NAMES
def test_slots_that_move_drop_the_graphs(name):
    model = model_of(name, torch.float32)
    extent, storage = model.open(100), model.forward.storage
    model.prefill(extent, random_tokens(40, 1))
    before = model.score([extent], [random_tree(1)])[0].clone()
    storage.reserve(2 * len(storage.states[0]))
    torch.testing.assert_close(model.score([extent], [random_tree(1)])[0], before, rtol=0, atol=0)


PROMPT = "the cat and the hen and the rat in the inn; " * 6
SETTINGS = {
    "greedy": SamplingParams(max_tokens=64, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.8, seed=3),
}


@NAMES
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_drafts_and_batches_change_no_token(name, params):
    network = repeating(name).cuda()
    engine = tiny_engine(network, forward="captured", eos_ids=frozenset({END}))
    assert engine.loaded.forward_name == "captured"
    prompts = [PROMPT[: 40 + 30 * number] for number in range(6)]
    plain = [engine.generate(each, params, draft="plain").token_ids for each in prompts]
    for preset in ("plain", "auto", "copy", "pld"):
        alone = [engine.generate(each, params, draft=preset).token_ids for each in prompts]
        assert alone == plain
        together = engine.generate(prompts, params, draft=preset)
        assert [result.token_ids for result in together] == plain
