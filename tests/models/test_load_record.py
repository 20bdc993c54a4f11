"""Later loads of a checkpoint need no transformers, and notice what has changed."""

import json
import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch
from test_load import logits_of, save
from tiny_architectures import LLAMA_SHAPED, build
from transformers import AutoTokenizer

from graft.home import home
from graft.models import forward_choice, llama_checkpoint, load
from graft.models.checkpoints.pretrained import locate
from graft.models.llama_files import FolderTensors, can_read, read_files
from graft.models.llama_shape import read_llama
from graft.models.load import load_model
from graft.models.load_record import read_record
from graft.models.panel_weights import pack_weights

HEAVY = ("transformers", "torch._dynamo", "torch.distributed.tensor", "torch.onnx", "torchao")


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "llama")


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("transformers was used")


def loads_alone(folder, monkeypatch, **options):
    """The model, loaded without transformers."""
    monkeypatch.setattr(load, "_transformers_config", refuse)
    monkeypatch.setattr(load, "transformers_tokenizer", refuse)
    return load_model(str(folder), **({"dtype": "fp32", "device": "cpu"} | options))


@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_files_give_the_shape_and_weights_of_the_network(tmp_path, name):
    folder = save(tmp_path / "model", name)
    network = build(name)
    assert can_read(folder, network.config)
    tensors = FolderTensors(folder)
    shape, weights = read_files(tensors, network.config, torch.float32, torch.device("cpu"))
    weights = weights.in_memory()
    expected_shape, expected = read_llama(network)
    assert torch.equal(shape.rope.frequencies, expected_shape.rope.frequencies)
    for field in ("layers", "heads", "kv_heads", "head_size", "vocabulary", "epsilon", "scale"):
        assert getattr(shape, field) == getattr(expected_shape, field)
    for field in ("embedding", "final_norm", "head"):
        assert torch.equal(getattr(weights, field), getattr(expected, field))
    assert (weights.head is weights.embedding) == network.config.tie_word_embeddings
    for ours, theirs in zip(weights.layers, expected.layers, strict=True):
        assert ours.window == theirs.window
        for field in ("attention_norm", "qkv", "output", "mlp_norm", "gate_up", "down"):
            assert torch.equal(getattr(ours, field), getattr(theirs, field))
        for a, b in ((ours.qkv_bias, theirs.qkv_bias), (ours.head_norms, theirs.head_norms)):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_weights_cast_while_packed_equal_weights_cast_before(tmp_path, name, dtype):
    folder, config = save(tmp_path / "model", name), build(name).config
    tensors, tokens = FolderTensors(folder), np.arange(config.vocab_size)
    _, before = read_files(tensors, config, dtype, torch.device("cpu"))
    _, kept = read_files(tensors, config, None, torch.device("cpu"))
    expected, packed = pack_weights(before), pack_weights(kept, dtype)
    for field in fields(packed):
        ours, theirs = getattr(packed, field.name), getattr(expected, field.name)
        if field.name.endswith("_rows"):
            ours, theirs = (torch.as_tensor(each(tokens)).float() for each in (ours, theirs))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["llama-biased", "llama-odd-sizes", "phi3"])
def test_other_checkpoints_are_read_by_transformers(tmp_path, name):
    assert not can_read(save(tmp_path / "model", name), build(name).config)
    load_model(str(tmp_path / "model"), dtype="fp32", device="cpu")
    assert read_record(locate(str(tmp_path / "model"))) is None


@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_a_second_load_gives_the_same_logits_without_transformers(tmp_path, monkeypatch, name):
    folder = save(tmp_path / "model", name)
    first = load_model(str(folder), dtype="fp32", device="cpu")
    again = loads_alone(folder, monkeypatch)
    assert torch.equal(logits_of(again), logits_of(first))
    assert again.forward_name == first.forward_name
    assert again.eos_ids == first.eos_ids == {2, 5}
    theirs = AutoTokenizer.from_pretrained(folder)
    assert again.tokenizer.encode("w7 w9") == theirs.encode("w7 w9")


def test_a_second_load_of_a_stretched_model_needs_no_transformers(folder, monkeypatch):
    first = load_model(str(folder), dtype="fp32", device="cpu", context_length=2048)
    again = loads_alone(folder, monkeypatch, context_length=2048)
    assert torch.equal(logits_of(again), logits_of(first))


@pytest.mark.parametrize("change", [{"dtype": "bf16"}, {"context_length": 2048}], ids=str)
def test_another_dtype_or_context_is_verified_again(folder, monkeypatch, change):
    load_model(str(folder), dtype="fp32", device="cpu")
    with pytest.raises(AssertionError, match="transformers was used"):
        loads_alone(folder, monkeypatch, **change)


def change_code(folder, monkeypatch) -> None:
    monkeypatch.setattr("graft.models.load_record._code", lambda: "another")


def change_config(folder, monkeypatch) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))


def change_tokenizer(folder, monkeypatch) -> None:
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")


def damage_records(folder, monkeypatch) -> None:
    for file in (home() / "checkpoints").rglob("*.json"):
        file.write_text("{")


CHANGES = [change_code, change_config, change_tokenizer, damage_records]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(folder, monkeypatch, change):
    load_model(str(folder), dtype="fp32", device="cpu")
    change(folder, monkeypatch)
    with pytest.raises(AssertionError, match="transformers was used"):
        loads_alone(folder, monkeypatch)


def test_a_forward_that_disagrees_is_not_kept(folder, monkeypatch, caplog):
    read = llama_checkpoint.read_files

    def misread(*given, **options):
        shape, weights = read(*given, **options)
        shape.scale *= 3
        return shape, weights

    monkeypatch.setattr(llama_checkpoint, "read_files", misread)
    for _ in range(2):
        loaded = load_model(str(folder), dtype="fp32", device="cpu")
        assert "forward is not used" in caplog.text
        caplog.clear()
        assert loaded.forward_name in ("panels", "lean")  # of the network's own weights
    assert not (home() / "verified").exists()


def test_a_second_start_imports_nothing_heavy(folder, monkeypatch):
    code = f"""
import sys, graft
engine = graft.load({str(folder)!r}, dtype="fp32", device="cpu", max_batch=1)
assert engine.load_seconds > 0
list(engine.stream([3, 4, 5], graft.SamplingParams(max_tokens=4)))
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    for faster in (True, False):  # the other process measures again which forward is faster
        with monkeypatch.context() as patch:
            patch.setattr(forward_choice, "panels_are_faster", lambda *_, faster=faster: faster)
            load_model(str(folder), dtype="fp32", device="cpu")
    environment = os.environ | {"GRAFT_COSTS": "reference"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr
