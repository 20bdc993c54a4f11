"""Checkpoints quantised for measurements are read and near the model they come from."""

import sys

import pytest
import torch
from tiny import tiny_network, tiny_tokenizer

import graft
from benchmarks import quantise
from graft import SamplingParams
from graft.models.checkpoints.folder import write_manifest
from graft.models.checkpoints.pretrained import locate
from graft.models.llama_files import can_read, open_tensors
from graft.models.load import read_config


@pytest.mark.parametrize(("kind", "near"), [("fp8", 0.04), ("int4", 0.16)])
def test_quantised_checkpoint_is_read(tmp_path, monkeypatch, kind, near):
    small, out = tmp_path / "small", tmp_path / "out"
    network = tiny_network(hidden=128, heads=8, kv_heads=4)
    network.save_pretrained(small)
    tiny_tokenizer().save_pretrained(small)
    write_manifest(small, "")  # as in a converted model
    command = f"quantise --model {small} --kind {kind} --device cpu --out {out}"
    monkeypatch.setattr(sys, "argv", command.split())
    quantise.main()
    assert not (out / "graft.json").exists()
    config = read_config(locate(str(out)))
    assert can_read(out, config)
    name = "model.layers.0.mlp.down_proj.weight"
    weight, found = network.state_dict()[name], open_tensors(out, config).load(name)
    assert not torch.equal(found, weight)
    assert (found - weight).abs().max() < near * weight.abs().max()


def test_a_shape_becomes_a_checkpoint(tmp_path, monkeypatch, tiny_folder):
    sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 256}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    monkeypatch.setitem(quantise.SIZES, "tiny-llama", ("Llama", sizes))
    out = tmp_path / "out"
    command = f"quantise --model tiny-llama --kind int4 --device cpu --tokenizer {tiny_folder}"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--out", str(out)])
    quantise.main()
    assert len(list(out.glob("*.safetensors"))) == 3
    result = graft.load(str(out), head=None, dtype="fp32").generate(
        [5, 6, 7], SamplingParams(max_tokens=4)
    )
    assert len(result.token_ids) == 4
