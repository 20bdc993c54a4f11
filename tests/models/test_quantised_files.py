"""Quantised checkpoints: read as their authors mean them, on a CPU and as packed matrices."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_quantised import LAYOUTS, save_quantised

from graft import SamplingParams, load
from graft.errors import GraftError
from graft.models.language_model import LanguageModel
from graft.models.llama_files import can_read, open_tensors, read_files
from graft.models.load_record import StoredConfig
from graft.models.quantised_files import layout_of

CPU = torch.device("cpu")
all_layouts = pytest.mark.parametrize("layout", LAYOUTS)


def config_of(folder):
    from transformers import AutoConfig

    content = AutoConfig.from_pretrained(folder).to_dict()
    return StoredConfig(**json.loads(json.dumps(content, default=str)))


@all_layouts
def test_products_are_read_as_their_authors_mean_them(tmp_path, layout):
    folder = save_quantised(tmp_path, layout)
    config, meant = config_of(folder), load_file(tmp_path / "dense" / "model.safetensors")
    assert can_read(folder, config)
    tensors = open_tensors(folder, config)
    for name, value in meant.items():
        torch.testing.assert_close(tensors.load(name).float(), value, rtol=1e-6, atol=1e-7)


@all_layouts
def test_packed_layers_are_the_dense_ones(tmp_path, layout):
    folder = save_quantised(tmp_path, layout)
    config = config_of(folder)
    meant = read_files(open_tensors(folder, config), config, torch.float32, CPU)[1].layers[1]
    packed = read_files(open_tensors(folder, config), config, torch.float16, CPU, packed=True)[1]
    for name in ("qkv", "output", "gate_up", "down"):
        matrix = getattr(packed.layers[1], name)
        found = matrix.dense().float()
        found = found if matrix.factors is None else found * matrix.factors[:, None]
        torch.testing.assert_close(found, getattr(meant, name), rtol=2e-3, atol=1e-5)
        assert matrix.nbytes < 0.65 * getattr(meant, name).half().nbytes


@pytest.mark.parametrize("layout", ["fp8 channels", "awq"])
def test_generates_what_the_dense_model_generates(tmp_path, layout):
    folder = save_quantised(tmp_path, layout)
    texts = [
        load(str(each), dtype="fp32", draft="plain", device="cpu")
        .generate([5, 9, 17, 4], SamplingParams(max_tokens=16, ignore_eos=True))
        .token_ids
        for each in (folder, tmp_path / "dense")
    ]
    assert texts[0] == texts[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled there: pytest -m gpu")
@pytest.mark.parametrize("layout", ["fp8 channels", "gptq"])
def test_forward_for_gpus_multiplies_packed_products(tmp_path, layout, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    from graft.models import forward_graphed
    from graft.models.forward_triton import TritonLayers

    monkeypatch.setattr(forward_graphed, "BUCKETS", (1, 2, 4, 8))
    monkeypatch.setattr(forward_graphed, "TASKS", 4)
    monkeypatch.setattr(forward_graphed.GraphedForward, "sizes", (1, 2, 4, 8))
    folder = save_quantised(tmp_path, layout)
    config, found = config_of(folder), []
    for packed in (True, False):
        tensors = open_tensors(folder, config)
        shape, weights = read_files(tensors, config, torch.float16, CPU, packed=packed)
        forward = forward_graphed.GraphedForward(TritonLayers(shape, weights.in_memory()))
        model = LanguageModel(forward, vocabulary=config.vocab_size, context_length=64)
        found.append(model.prefill(model.open(16), [5, 9, 17, 4]))
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)


def test_reordered_inputs_are_refused(tmp_path):
    folder = save_quantised(tmp_path, "gptq")
    stored = load_file(folder / "model.safetensors")
    stored = {
        name: value.flip(0).contiguous() if name.endswith("down_proj.g_idx") else value
        for name, value in stored.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GraftError, match="act-order"):
        load(str(folder), dtype="fp32", device="cpu")


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "gptq", "bits": 8, "group_size": 128},
        {"quant_method": "awq", "bits": 4, "version": "marlin"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
    ],
    ids=lambda settings: settings["quant_method"],
)
def test_other_layouts_are_left_to_transformers(settings):
    assert layout_of(StoredConfig(quantization_config=settings)) is None
