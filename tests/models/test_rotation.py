"""Keys turned to other positions are those that the network computes there."""

import numpy as np
import pytest
import torch
from tiny_architectures import HOOKED, LLAMA_SHAPED, VOCABULARY, build

from graft.errors import UnsupportedModelError
from graft.models.forward import LeanForward
from graft.models.forward_hook import HookForward
from graft.models.forward_panels import PanelForward
from graft.models.invariant import InvariantForward
from graft.models.language_model import LanguageModel
from graft.models.llama_shape import read_llama
from graft.models.load import build_forward
from graft.models.panel_weights import pack_weights
from graft.models.rotation import find_rotation, frequencies_name
from graft.models.spans import append_rows, read_apart, read_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def panel_forward(network):
    shape, weights = read_llama(network)
    return PanelForward(shape, pack_weights(weights))


FORWARDS = {
    "panels": panel_forward,
    "lean": lambda network: LeanForward(*read_llama(network)),
    "hook": HookForward,
}
CASES = [(name, kind) for name in LLAMA_SHAPED for kind in FORWARDS] + [(n, "hook") for n in HOOKED]


def model_of(network, kind: str) -> LanguageModel:
    return LanguageModel(FORWARDS[kind](network), vocabulary=VOCABULARY, context_length=2048)


def text(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def rows_behind(model: LanguageModel, before: list[int], tokens: list[int]) -> torch.Tensor:
    """Rows of tokens read after others."""
    extent = model.open(len(before) + len(tokens))
    model.prefill(extent, before + tokens)
    rows = read_rows(model, extent, len(before), len(before) + len(tokens)).clone()
    model.close(extent)
    return rows


@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda each: str(each))
def test_first_layer_keys_are_the_fresh_ones_in_any_architecture(name, kind):
    model = model_of(build(name), kind)
    rotation, tokens = find_rotation(model), text(21)
    here, there = (rows_behind(model, text(n, seed=1), tokens) for n in (5, 300))
    places = np.arange(len(tokens))
    turned = rotation.rotated(here, 5 + places, 300 + places)
    torch.testing.assert_close(turned[:, 0], there[:, 0], rtol=0, atol=1e-5)
    assert not torch.allclose(here[0, 0], there[0, 0], atol=1e-2)
    assert torch.equal(turned[1], here[1])


def test_all_layers_are_the_same_where_the_text_before_is():
    """Two readings after the same head, at different places: nothing but the rotation differs."""
    model = model_of(build("qwen2"), "panels")
    extent = model.open(256)
    model.prefill(extent, text(40, seed=1))
    apart = read_apart(model, extent, text(20), after=30)
    expected = rows_behind(model, text(40, seed=1)[:30], text(20))
    assert torch.equal(apart, expected)
    assert extent.total == 40


def test_rows_put_back_go_on_as_the_text_itself():
    model = model_of(build("llama"), "panels")
    whole = text(50)
    straight, pieced = model.open(64), model.open(64)
    expected = model.prefill(straight, whole)
    append_rows(model, pieced, rows_behind(model, [], whole[:30]))
    assert torch.equal(model.prefill(pieced, whole[30:]), expected)


def test_sixteen_bit_keys_are_rotated():
    network = build("qwen2")
    forward, _ = build_forward(network, name="tiny", dtype=torch.bfloat16, kind="lean")
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048)
    rotation, tokens = find_rotation(model), text(21)
    here, there = (rows_behind(model, text(n, seed=1), tokens) for n in (5, 300))
    turned = rotation.rotated(here, 5 + np.arange(21), 300 + np.arange(21))
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned[0, 0], there[0, 0], rtol=2e-2, atol=2e-2)


def test_keys_of_invariant_forwards_are_rotated():
    forward, _ = build_forward(build("llama"), name="tiny", kind="lean", invariant=True)
    assert isinstance(forward, InvariantForward)
    find_rotation(LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048))


def test_a_model_with_learned_positions_is_refused():
    import transformers

    config = transformers.GPT2Config(
        n_embd=32, n_head=2, n_layer=2, vocab_size=VOCABULARY, n_positions=512
    )
    torch.manual_seed(0)
    network = transformers.GPT2LMHeadModel(config).eval()
    model = LanguageModel(HookForward(network), vocabulary=VOCABULARY, context_length=512)
    with pytest.raises(UnsupportedModelError, match="more than a rotation.*use reuse off or exact"):
        find_rotation(model)


def test_rotations_have_names_of_their_own():
    models = [model_of(build(name), "lean") for name in ("llama", "llama", "yarn-rope")]
    first, second, other = map(frequencies_name, models)
    assert first == second != other


@pytest.mark.slow
def test_the_real_model_keys_are_the_fresh_ones(smollm2):
    model = smollm2.model
    rotation = find_rotation(model)
    tokens = smollm2.encoder.text("The lift in the surgical wing was installed in 2016.")
    before = smollm2.encoder.text("A sentence that comes first, and again. " * 40)
    extent = model.open(len(before) + len(tokens))
    try:
        rows = read_apart(model, extent, tokens, after=0)
        model.prefill(extent, before + tokens)
        there = read_rows(model, extent, len(before), len(before) + len(tokens))
    finally:
        model.close(extent)
    places = np.arange(len(tokens))
    turned = rotation.rotated(rows, places, len(before) + places)
    scale = there[0, 0].abs().max()
    torch.testing.assert_close(turned[:, 0], there[:, 0], rtol=0, atol=1e-5 * float(scale))
