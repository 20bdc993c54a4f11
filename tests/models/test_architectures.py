"""Every architecture, through every forward it has: logits of trees equal those of plain text."""

import numpy as np
import pytest
import torch
from daily import daily
from tiny_architectures import HOOKED, LLAMA_SHAPED, REFUSED, VOCABULARY, WINDOW, build, config_of
from transformers import Cache

from graft.errors import UnsupportedModelError
from graft.kernels.attention_weights import causal_weights
from graft.models import forward_choice
from graft.models.language_model import LanguageModel
from graft.models.load import build_forward
from graft.models.probe import reference_logits
from graft.tree.draft_tree import DraftTree, from_paths

CASES = [(name, kind) for name in LLAMA_SHAPED for kind in ("panels", "lean", "hook")]
CASES += [(name, "hook") for name in HOOKED]


pytestmark = pytest.mark.usefixtures("one_thread")


def random_numbers(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def random_tree(seed: int) -> DraftTree:
    rng = np.random.default_rng(seed)
    return from_paths(5, [rng.integers(3, 6, rng.integers(1, 12)).tolist() for _ in range(6)])


def assert_tree_equals_paths(
    network, model: LanguageModel, prompt: list[int], seed: int, tolerance: float = 2e-5
) -> None:
    """Logits of all nodes against the network's own forward over the prompt and each path."""
    tree, extent = random_tree(seed), model.open(8)
    model.prefill(extent, prompt)
    logits = model.score([extent], [tree])[0]
    scale = float(logits.abs().max())
    ancestors = tree.ancestors()
    leaves = set(range(len(tree))) - set(tree.parents.tolist())
    for leaf in leaves:
        path = np.flatnonzero(ancestors[leaf])
        text = prompt + tree.tokens[path].tolist()
        expected = reference_logits(network, [text])[0][len(prompt) :]
        torch.testing.assert_close(logits[path], expected, rtol=0, atol=tolerance * max(scale, 1))
    model.close(extent)


@pytest.mark.parametrize(
    ("name", "kind"),
    daily(CASES, *(case for place, case in enumerate(CASES) if place % 2 == 0)),
)
def test_tree_logits_equal_those_of_each_path(name, kind):
    network = reference = build(name)
    forward, used = build_forward(network, name=name, kind=kind)
    assert used == kind
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)
    for length in (3, WINDOW, 3 * WINDOW + 1, 70):
        assert_tree_equals_paths(reference, model, random_numbers(length, length), length)


@pytest.mark.parametrize("kind", ["panels", "lean", "hook"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    daily([(torch.bfloat16, 0.05), (torch.float16, 0.01)], (torch.bfloat16, 0.05)),
)
def test_sixteen_bits_stay_near_thirty_two(kind, dtype, tolerance):
    exact = reference_logits(build("qwen3"), [random_numbers(40, 0)])[0][-1]
    forward, used = build_forward(build("qwen3"), name="qwen3", dtype=dtype, kind=kind)
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)
    logits = model.prefill(model.open(40), random_numbers(40, 0))
    assert (used, logits.dtype) == (kind, torch.float32)
    assert 0 < float((logits - exact).abs().max()) < tolerance * float(exact.abs().max())


@pytest.mark.parametrize(
    ("name", "faster", "kind"),
    [*((name, True, "panels") for name in LLAMA_SHAPED), ("llama", False, "lean")],
)
def test_llama_shaped_models_get_the_forward_that_is_faster_here(name, faster, kind, monkeypatch):
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda config, dtype: faster)
    assert build_forward(build(name), name=name)[1] == kind


@pytest.mark.parametrize("name", HOOKED)
def test_other_models_run_through_the_hook(name):
    assert build_forward(build(name), name=name)[1] == "hook"


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_would_be_silently_wrong_is_refused_by_name(name):
    with pytest.raises(UnsupportedModelError) as error:
        build_forward(build(name), name=f"my-{name}")
    assert str(error.value).startswith(f"my-{name} cannot be used: ")
    assert "\n" not in str(error.value)


def test_recurrent_layers_of_an_older_transformers_are_refused(monkeypatch):
    monkeypatch.delattr(Cache, "is_recording_past")
    with pytest.raises(UnsupportedModelError, match="mine cannot be used: .* transformers 5.21"):
        build_forward(build("qwen3-next"), name="mine")


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_other_models_of_the_same_config_keep_their_attention(name):
    config = config_of(name)
    network, other = build(name, config), build(name, config)
    text = random_numbers(30, 0)
    before = reference_logits(other, [text])[0]
    build_forward(network, name=name, kind="hook")
    assert config._attn_implementation == "eager"
    assert other.config is config
    torch.testing.assert_close(reference_logits(other, [text])[0], before, rtol=0, atol=0)
    torch.testing.assert_close(
        reference_logits(build(name, config), [text])[0], before, rtol=0, atol=0
    )


def test_a_refused_model_is_given_back_as_it_was():
    network = build("nemotron")
    text = random_numbers(30, 0)
    before = reference_logits(network, [text])[0]
    with pytest.raises(UnsupportedModelError):
        build_forward(network, name="lfm2")
    torch.testing.assert_close(reference_logits(network, [text])[0], before, rtol=0, atol=0)


def test_transformers_modules_replace_a_lean_forward_that_disagrees(monkeypatch, caplog):
    network = build("llama")
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda config, dtype: False)
    read = forward_choice.read_llama

    def misread(model, **options):
        shape, weights = read(model, **options)
        shape.scale *= 3
        return shape, weights

    monkeypatch.setattr(forward_choice, "read_llama", misread)
    assert build_forward(network, name="odd")[1] == "hook"
    assert "odd: the lean forward is not used" in caplog.text


@pytest.mark.parametrize("name", [*LLAMA_SHAPED, *HOOKED])
def test_queries_give_the_attention_of_plain_softmax_layers(name):
    network = build(name)
    forward, _ = build_forward(network, name=name)
    assert forward.weighs_plainly(-1, 1) == (name not in ("gemma2", "gpt-oss"))
    assert forward.weighs_plainly(-1, WINDOW + 1) == (
        name not in ("gemma2", "gemma3", "gpt-oss", "mistral", "qwen2-mixed-windows")
    )
    if not forward.weighs_plainly(-1, 1):
        return
    tokens = list(range(3, 3 + WINDOW))
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)
    extent = model.open(len(tokens))
    queries = model.queries(extent, tokens)
    keys = forward.storage.keys_of(len(queries) - 1, [(extent.start, len(tokens))])
    with torch.inference_mode():
        told = network(torch.tensor([tokens]), output_attentions=True, use_cache=False)
    expected = told.attentions[-1][0]
    torch.testing.assert_close(causal_weights(queries[-1], keys), expected, atol=1e-4, rtol=1e-4)
