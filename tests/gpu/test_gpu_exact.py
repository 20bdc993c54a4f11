"""In 16 bits a node's logits and cache rows follow from its own path, bit for bit, in any step; so
drafts and batches change no token. Run with `pytest -m gpu`.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_engine, tiny_network
from tiny_architectures import build, config_of
from tiny_quantised import LAYOUTS
from transformers import PretrainedConfig

from graft.kernels.fragment_matrix import FragmentMatrix, for_device
from graft.kernels.packed_matrix import PackedMatrix
from graft.models.arena import Extent
from graft.models.forward_choice import build_forward
from graft.models.gpu import graphed_forward
from graft.models.language_model import LanguageModel
from graft.models.llama_shape import LlamaWeights, read_llama
from graft.models.quantised_files import layout_of
from graft.sampling import SamplingParams
from graft.tree.draft_tree import DraftTree, chain, from_paths, root_only

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
VOCABULARY = 1000
CONTEXT, STEPS = 300, 120  # tokens that are prefilled, and then decoded one by one
LONG, LONG_STEPS = 4100, 4  # splits of several sizes
SHAPE = dict(hidden=256, heads=4, kv_heads=2, head_dim=64, max_position_embeddings=8192)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
MODULES = ("gemma3", "phi3", "olmo2", "glm4", "qwen3moe", "gpt-oss")


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def packed(weights: LlamaWeights, layout: str, dtype: torch.dtype) -> LlamaWeights:
    """The products of all layers quantised in a layout of `tiny_quantised`."""
    settings, quantise = LAYOUTS[layout]
    layout_read = layout_of(SimpleNamespace(quantization_config=settings)).read

    def matrix(weight: torch.Tensor) -> PackedMatrix | FragmentMatrix:
        parts = quantise(weight.float().cpu())[0]
        return for_device(layout_read(lambda suffix: parts[suffix].to(DEVICE), dtype))

    names = ("qkv", "output", "gate_up", "down")
    layers = [
        replace(layer, **{name: matrix(getattr(layer, name)) for name in names})
        for layer in weights.layers
    ]
    return replace(weights, layers=layers)


def modules_config(name: str) -> PretrainedConfig:
    """An architecture that runs by transformers' modules, large enough for matrix units."""
    sizes = dict(hidden_size=256, intermediate_size=384, head_dim=64, vocab_size=VOCABULARY)
    return config_of(name, max_position_embeddings=8192, **sizes)


class Decoded:
    """A model and a text that it has decoded token by token: logits, and then cache rows."""

    def __init__(
        self,
        dtype: torch.dtype,
        context: int,
        steps: int,
        quantise: str | None = None,
        modules: str | None = None,
    ) -> None:
        network = tiny_network(vocab=VOCABULARY, **SHAPE).to(DEVICE)
        if modules:
            network = build(modules, modules_config(modules)).to(DEVICE)
            forward, kind = build_forward(network, name=modules, dtype=dtype, kind="captured")
            assert kind == "captured"
            assert forward.capturing
        elif quantise:
            shape, weights = read_llama(network.to(dtype))
            forward = graphed_forward(shape, packed(weights, quantise, dtype))
        else:
            forward, kind = build_forward(network, name="tiny", dtype=dtype, kind="graphed")
            assert kind == "graphed"
        self.model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=8192, chunk=2048)
        self.context, self.text = context, random_tokens(context + steps, 1)
        extent = self.read(context)
        self.logits = [
            self.model.prefill_chunk(extent, [token]).clone() for token in self.text[context:]
        ]
        self.rows = self.rows_of(extent)

    def read(self, *ends: int, prefix: Extent | None = None) -> Extent:
        """A sequence of the text up to the last of these ends, prefilled in chunks that end there,
        behind a prefix of it."""
        extent = self.model.open(len(self.text) + 200, prefix)
        start = prefix.length if prefix is not None else 0
        for end in ends:
            self.model.prefill_chunk(extent, self.text[start:end])
            start = end
        return extent

    def rows_of(self, extent: Extent) -> torch.Tensor:
        return self.model.arena.storage.read(np.array(extent.rows)).clone()

    def assert_rows(self, extent: Extent) -> None:
        rows = self.rows_of(extent)
        assert torch.equal(rows, self.rows[:, :, :, : rows.shape[3]])

    def assert_logits(self, first: int, logits: Sequence[torch.Tensor]) -> None:
        """These are the logits after the tokens from `first` on."""
        for index, found in enumerate(logits, first - self.context):
            assert torch.equal(found, self.logits[index]), index


@pytest.fixture
def decoded(dtype):
    return Decoded(dtype, CONTEXT, STEPS)


def assert_any_step(decoded: Decoded) -> None:
    """In chunks with other borders, and as drafts, logits and rows are those of one by one."""
    for cuts in ((7, 257), (100, 101, 230), (CONTEXT,)):
        extent = decoded.read(*cuts, CONTEXT + STEPS - 1)
        decoded.assert_logits(
            CONTEXT + STEPS - 1, [decoded.model.prefill_chunk(extent, decoded.text[-1:])]
        )
        decoded.assert_rows(extent)
    extent = decoded.read(CONTEXT)
    for nodes in (2, 17, 33, 65, STEPS):
        tree = chain(decoded.text[CONTEXT : CONTEXT + nodes])
        decoded.assert_logits(CONTEXT, decoded.model.score([extent], [tree])[0])


@DTYPES
@pytest.mark.parametrize("name", MODULES)
def test_captured_modules_in_steps_of_any_size(dtype, name):
    assert_any_step(Decoded(dtype, CONTEXT, STEPS, modules=name))


@DTYPES
@pytest.mark.parametrize("layout", ["fp8 channels", "fp8 blocks", "compressed", "awq"])
def test_packed_products_in_steps_of_any_size(dtype, layout):
    assert_any_step(Decoded(dtype, CONTEXT, STEPS, layout))


@DTYPES
@pytest.mark.parametrize(
    "cuts", [(), (1,), (7, 8), (64,), (100, 101, 230), (257,), (299,), (350, 352)]
)
def test_chunks_of_any_size(decoded, cuts):
    end = CONTEXT + STEPS
    extent = decoded.read(*cuts, end - 1)
    logits = decoded.model.prefill_chunk(extent, decoded.text[end - 1 :])
    decoded.assert_logits(end - 1, [logits])
    decoded.assert_rows(extent)


@DTYPES
def test_chains_of_drafts(decoded):
    extent = decoded.read(CONTEXT)
    for nodes in (2, 3, 5, 15, 16, 17, 40, 63, 64, 65, 100):
        draft = chain(decoded.text[CONTEXT : CONTEXT + nodes])
        decoded.assert_logits(CONTEXT, decoded.model.score([extent], [draft])[0])


def tree_of(text: Sequence[int]) -> tuple[DraftTree, list[int]]:
    """A draft tree with the text on one of its branches, and the nodes of that branch."""
    root, second, third, *_ = text
    others = [[9, 8, 7], [second, 9, 8], [second, third, 9]]
    tree = from_paths(root, [others[0], list(text[1:]), *others[1:]])
    paths = [list(path) for path in tree.paths()]
    return tree, [paths.index(list(text[1 : depth + 1])) for depth in range(len(text))]


@DTYPES
@pytest.mark.parametrize("start", [CONTEXT, CONTEXT + 19, CONTEXT + 20, CONTEXT + 83])
def test_trees_alone_in_a_batch_and_committed(decoded, start):
    """Among them trees with the borders of blocks and splits at their root and below it."""
    model, extent = decoded.model, decoded.read(start)
    tree, branch = tree_of(decoded.text[start : start + 8])
    decoded.assert_logits(start, model.score([extent], [tree])[0][branch])
    others = [model.open(600) for _ in range(5)]
    for number, other in enumerate(others):
        model.prefill(other, random_tokens(50 + 110 * number, number + 5))
    drafts = [chain(random_tokens(3 + 16 * number, number)) for number in range(5)]
    scored = model.score([*others[:3], extent, *others[3:]], [*drafts[:3], tree, *drafts[3:]])
    decoded.assert_logits(start, scored[3][branch])
    model.commit(extent, branch)
    decoded.assert_rows(extent)
    (after,) = model.score([extent], [root_only(decoded.text[start + 8])])
    decoded.assert_logits(start + 8, after)


@DTYPES
@pytest.mark.parametrize("shared", [128, 256, 299])
def test_shared_prefixes(decoded, shared):
    prefix, text = decoded.read(shared), decoded.text
    first, second = decoded.read(CONTEXT + 10, prefix=prefix), decoded.read(330, 333, prefix=prefix)
    scored = decoded.model.score([first, second], [root_only(text[310]), chain(text[333:336])])
    decoded.assert_logits(310, scored[0])
    decoded.assert_logits(333, scored[1])
    decoded.assert_rows(second)


@DTYPES
def test_long_contexts(dtype):
    decoded = Decoded(dtype, LONG, LONG_STEPS)
    model, other = decoded.model, decoded.model.open(100)
    model.prefill(other, random_tokens(40, 2))
    extent = decoded.read(700, 2600, LONG)
    draft = chain(decoded.text[LONG:])
    decoded.assert_logits(LONG, model.score([other, extent], [root_only(5), draft])[1])
    decoded.assert_rows(extent)


PROMPT = "the cat and the hen and the rat in the inn; "
SETTINGS = {
    "greedy": SamplingParams(max_tokens=64),
    "sampled": SamplingParams(max_tokens=64, temperature=1.0, seed=3),
}


@DTYPES
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_drafts_and_batches_change_no_token(dtype, params):
    engine = tiny_engine(tiny_network(**SHAPE).to(DEVICE, dtype), forward="graphed")
    prompts = [PROMPT * (1 + number % 5) + "the river"[: number % 9] for number in range(16)]
    plain = [engine.generate(prompt, params, draft="plain").token_ids for prompt in prompts]
    for preset in ("plain", "auto", "copy"):
        alone = [engine.generate(prompt, params, draft=preset) for prompt in prompts]
        assert [result.token_ids for result in alone] == plain
        together = engine.generate(prompts, params, draft=preset)
        assert [result.token_ids for result in together] == plain
