"""Weight-only int8: our product is torchao's, from every kind of checkpoint."""

import sys

import numpy as np
import pytest
import torch
from test_load import logits_of, one_line, save
from tiny_architectures import HOOKED, LLAMA_SHAPED, VOCABULARY, build
from tiny_int8 import quantised
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    PerGroup,
    PerTensor,
    quantize_,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, TorchAoConfig

from graft.errors import InputError
from graft.models.int8 import stored_quantisation
from graft.models.language_model import LanguageModel
from graft.models.llama_shape import is_llama_shaped, read_llama
from graft.models.load import build_forward, load_model
from graft.models.probe import reference_logits
from graft.tree.draft_tree import from_paths

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = np.random.default_rng(0).integers(3, VOCABULARY, 40).tolist()
TREE = from_paths(5, [[6, 7, 8], [6, 9], [10]])


def assert_scores_as(reference, forward) -> None:
    """Prompt and tree against the network's own forward: torchao's."""
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=512)
    extent = model.open(64)
    last = model.prefill(extent, PROMPT)
    logits = model.score([extent], [TREE])[0]
    path = [0] + [i for i in range(1, len(TREE)) if TREE.ancestors()[-1, i]]
    expected = reference_logits(reference, [PROMPT + TREE.tokens[path].tolist()])[0]
    ours = torch.cat([last[None], logits[path]])
    scale = float(expected.abs().max())
    torch.testing.assert_close(ours, expected[len(PROMPT) - 1 :], rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_panels_compute_what_torchao_computes(name):
    forward, used = build_forward(quantised(build(name)), name=name)
    assert used == "panels"
    assert forward.weights.qkv.dtype == np.int8
    assert forward.weights.head.dtype == np.float32  # the output layer is left as it is
    assert_scores_as(quantised(build(name)), forward)


@pytest.mark.parametrize("name", HOOKED)
def test_other_architectures_run_torchaos_tensors_through_the_hook(name):
    forward, used = build_forward(quantised(build(name)), name=name)
    assert used == "hook"
    assert_scores_as(quantised(build(name)), forward)


def test_int8_is_not_what_the_network_was():
    plain = reference_logits(build("llama"), [PROMPT])[0]
    rounded = reference_logits(quantised(build("llama")), [PROMPT])[0]
    difference = float((plain - rounded).abs().max())
    assert 1e-4 < difference / float(plain.abs().max()) < 0.1


def test_one_scale_for_a_whole_weight_serves_every_column():
    network, reference = build("llama"), build("llama")
    for each in (network, reference):
        quantize_(each.model.layers, Int8WeightOnlyConfig(granularity=PerTensor(), version=2))
    forward, used = build_forward(network, name="llama")
    assert used == "panels"
    assert_scores_as(reference, forward)


@pytest.mark.parametrize(
    "config",
    [
        Int8WeightOnlyConfig(granularity=PerGroup(16), version=2),
        Int8DynamicActivationInt8WeightConfig(version=2),
    ],
    ids=lambda config: type(config).__name__,
)
def test_other_kinds_of_int8_are_left_to_transformers(config):
    network = build("llama")
    quantize_(network.model.layers, config)
    assert not is_llama_shaped(network)


def test_layers_that_are_quantised_in_part_are_left_to_transformers():
    network = build("llama")
    quantize_(network.model.layers[0], Int8WeightOnlyConfig(version=2))
    assert not is_llama_shaped(network)
    forward, used = build_forward(network, name="llama")
    assert used == "hook"


def test_a_quantised_output_layer_is_left_to_transformers():
    network = build("llama")
    quantize_(network, Int8WeightOnlyConfig(version=2))
    assert not is_llama_shaped(network)


def test_fused_weights_keep_code_and_scale_together():
    network = quantised(build("qwen2"))
    layer = read_llama(network)[1].layers[1]
    attention = network.model.layers[1].self_attn
    whole = layer.qkv.float() * layer.scales.qkv[:, None]
    parts = [p.weight.dequantize() for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-6, atol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def int8_folder(folder, tmp_path_factory):
    """The same checkpoint, quantised and saved by transformers."""
    saved = tmp_path_factory.mktemp("llama-int8")
    AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        quantization_config=TorchAoConfig(Int8WeightOnlyConfig(version=2)),
    ).save_pretrained(saved)
    AutoTokenizer.from_pretrained(folder).save_pretrained(saved)
    return saved


def test_a_checkpoint_is_quantised_as_it_is_read(folder):
    loaded = load_model(str(folder), dtype="int8", device="cpu")
    assert (loaded.dtype, loaded.forward_name) == ("int8", "panels")
    reference = reference_logits(quantised(build("llama")), [[*PROMPT, 7, 8, 11]])[0]
    torch.testing.assert_close(logits_of(loaded)[:2], reference[[39, 40]], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_a_quantised_checkpoint_scores_as_one_quantised_here(folder, int8_folder, dtype):
    loaded = load_model(str(int8_folder), dtype=dtype, device="cpu")
    assert (loaded.dtype, loaded.forward_name) == ("int8", "panels")
    here = load_model(str(folder), dtype="int8", device="cpu")
    assert torch.equal(logits_of(loaded), logits_of(here))


def test_auto_never_quantises(folder):
    assert load_model(str(folder), device="cpu").dtype in ("fp32", "bf16")


def test_a_quantised_checkpoint_cannot_be_had_in_other_numbers(int8_folder):
    with pytest.raises(InputError, match="holds int8 weights; use --dtype int8 or auto") as error:
        load_model(str(int8_folder), dtype="fp32", device="cpu")
    one_line(error)


def test_without_torchao_one_line_says_what_to_install(folder, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="int8 needs torchao; type: pip install torchao") as error:
        load_model(str(folder), dtype="int8", device="cpu")
    one_line(error)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (None, None),
        ({"quant_method": "torchao",
          "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}, "int8"),
        ({"quant_method": "torchao",
          "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}},
         "torchao Int4WeightOnlyConfig"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
    ],
)  # fmt: skip
def test_how_a_checkpoint_is_quantised_is_read_off_its_config(settings, word):
    config = build("llama").config
    if settings is not None:
        config.quantization_config = settings
    assert stored_quantisation(config) == word


def test_the_plain_weights_of_a_quantised_network_follow_the_dtype():
    forward, _ = build_forward(quantised(build("llama")), name="llama", dtype=torch.bfloat16)
    assert forward.weights.head.dtype == np.uint16
    assert forward.weights.qkv.dtype == np.int8
