"""Products of ours inside transformers' modules."""

import copy

import pytest
import torch
from tiny_architectures import VOCABULARY, build, config_of
from tiny_int8 import quantised
from torch import nn

from graft.errors import UnsupportedModelError
from graft.kernels.panels import LANES
from graft.models import forward_choice
from graft.models.forward_choice import build_forward
from graft.models.module_panels import MIN_SHARED_WEIGHTS, Embedding, ModulePanels, Panels
from graft.models.probe import reference_of

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOKENS = torch.tensor([[5, 9, 9, 3, 40, 7]])


def logits(network):
    with torch.no_grad():
        return network(input_ids=TOKENS, use_cache=False).logits[0]


def weights_of(network):
    return {name: each.detach().clone() for name, each in network.named_parameters()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(16, 8), (17, 5), (3, 31, 6)])
def test_packed_matrices_are_the_rounded_ones(shape, dtype):
    weight = torch.randn(shape)
    panels = Panels.of(weight, dtype)
    assert torch.equal(panels.weight(), weight.to(dtype))
    turned = Panels.of(weight.mT, dtype, transposed=True)
    assert torch.equal(turned.weight(), weight.to(dtype))
    if len(shape) == 2:
        chosen = torch.tensor([[2, 0], [15, 2]])
        assert torch.equal(panels.rows(chosen.numpy()), weight.to(dtype)[chosen])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["phi", "gemma3", "gptneox", "mixtral", "gpt-oss", "granite", "qwen3.5"]
)
def test_the_model_computes_what_its_rounded_weights_do(name, dtype):
    network = build(name).float()
    packed, rounded = copy.deepcopy(network), copy.deepcopy(network)
    panels = ModulePanels(packed, dtype)
    for of_packed, of_rounded in zip(packed.parameters(), rounded.parameters(), strict=True):
        if not of_packed.numel():
            of_rounded.data = of_rounded.data.to(dtype).float()
    torch.testing.assert_close(logits(packed), logits(rounded), rtol=1e-4, atol=1e-5)
    assert sum(each.numel() for each in packed.parameters()) < 0.2 * sum(
        each.numel() for each in network.parameters()
    )

    panels.undo()
    before = weights_of(rounded)
    assert all(torch.equal(each, before[name]) for name, each in packed.named_parameters())
    torch.testing.assert_close(logits(packed), logits(rounded))
    assert not any("forward" in vars(module) for module in packed.modules())


def test_a_product_has_the_same_bits_for_any_number_of_rows():
    layer = nn.Sequential(nn.Linear(40, 3 * LANES + 1))
    layer.get_output_embeddings = lambda: layer[0]
    layer.get_input_embeddings = lambda: table
    table = nn.Embedding(8, 40)
    ModulePanels(layer, torch.bfloat16)
    x = torch.randn(37, 40)
    whole = layer(x)
    assert torch.equal(torch.cat([layer(x[:1]), layer(x[1:6]), layer(x[6:])]), whole)
    assert torch.equal(layer(x[None, :5]), whole[None, :5])


def test_a_table_that_input_and_output_share_is_packed_once():
    network = build("gemma3", config_of("gemma3", tie_word_embeddings=True)).float()
    expected = logits(network)
    panels = ModulePanels(network, torch.float32)
    torch.testing.assert_close(logits(network), expected)
    linears = sum(type(each) is nn.Linear for each in network.modules())
    assert len(panels._packed) == linears  # the output layer's is the embedding's


def test_quantised_embeddings_stay():
    network = build("gemma3").float()
    network.get_output_embeddings().weight = nn.Parameter(torch.zeros(VOCABULARY, 32).half())
    with pytest.raises(UnsupportedModelError, match="quantised"):
        ModulePanels(network, torch.float32)
    assert not any("forward" in vars(module) for module in network.modules())


def test_large_matrices_are_shared_between_threads(monkeypatch):
    monkeypatch.setattr("graft.models.module_panels.use_threads", lambda: 2)
    small, large = torch.zeros(4, 8), torch.zeros(1, 1).expand(MIN_SHARED_WEIGHTS // 64, 64)
    assert [Panels.of(each, torch.float16).threads for each in (small, large)] == [1, 2]


def test_an_embedding_scales_the_rows_of_its_panels():
    class Scaled(nn.Embedding):
        def forward(self, tokens):
            return 3 * super().forward(tokens)

    module = Scaled(20, 6, padding_idx=1)
    expected = module(TOKENS.clamp(max=19))
    looked_up = Embedding(module, Panels.of(module.weight.detach(), torch.float32))
    assert torch.equal(looked_up(TOKENS.clamp(max=19)), expected)


@pytest.mark.parametrize("faster", [True, False])
def test_products_are_ours_where_they_are_faster(faster, monkeypatch):
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda *_: faster)
    forward, kind = build_forward(build("gemma3"), name="tiny", dtype=torch.bfloat16)
    assert kind == ("hook-panels" if faster else "hook")
    assert forward.output_weight(None).shape == (VOCABULARY, 32)
    some = torch.tensor([3, 1])
    assert torch.equal(forward.output_weight(some), forward.output_weight(None)[some])


def test_quantised_layers_are_not_packed(monkeypatch):
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda *_: True)
    network = quantised(build("gemma3"))
    monkeypatch.setattr(type(network), "float", None)  # transformers refuses it for quantised ones
    layer = network.model.layers[0].mlp.up_proj
    forward, kind = build_forward(network, name="tiny", dtype=torch.bfloat16)
    assert kind == "hook-panels"
    assert "forward" not in vars(layer)
    assert "forward" in vars(forward.model.lm_head)


def test_a_model_of_the_callers_keeps_its_weights(monkeypatch):
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda *_: True)
    network = build("gemma3")
    before = weights_of(network)
    assert build_forward(network, name="tiny")[1] == "hook"
    assert all(torch.equal(each, before[name]) for name, each in network.named_parameters())


def test_modules_that_read_the_weights_of_others_run_as_they_are(monkeypatch):
    monkeypatch.setattr(forward_choice, "panels_are_faster", lambda *_: True)
    network = build("mamba")
    expected = reference_of(copy.deepcopy(network))
    forward, kind = build_forward(network, name="tiny", dtype=torch.float32)
    assert kind == "hook"
    torch.testing.assert_close(reference_of(forward.model).logits, expected.logits)
