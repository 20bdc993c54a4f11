"""Perplexity by position: by hand from the model's own losses, stretched and not."""

import math
import sys

import pytest
import torch
from tiny import save_tiny, tiny_tokenizer
from transformers import AutoModelForCausalLM

from benchmarks.quality import perplexity
from graft.bench.result_file import read_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a context of 64 tokens."""
    return save_tiny(tmp_path_factory.mktemp("tiny-model"), max_position_embeddings=64)


def call(monkeypatch, capsys, *words):
    module = perplexity
    monkeypatch.setattr(module, "EDGES", (0, 16, 64, 256))
    monkeypatch.setattr(sys, "argv", ["perplexity.py", *map(str, words)])
    return module.main(), capsys.readouterr()


def test_losses_are_the_models_own(monkeypatch, capsys, tmp_path, folder):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    text, out = tmp_path / "text.txt", tmp_path / "p.jsonl"
    text.write_text("the end of the owls and the cats. " * 30)
    words = [folder, "--text", text, "--context-lengths", "own,128", "--windows", "2"]
    words += ["--dtype", "fp32", "--device", "cpu", "--out", out]
    code, printed = call(monkeypatch, capsys, *words)
    assert code == 0
    rows = read_results(out).rows
    found = {(row["context_length"], row["window"], row["first"]): row for row in rows}
    assert {key[0] for key in found} == {64, 128}
    assert {key[2] for key in found if key[0] == 64} == {0, 16}  # no longer than its context
    assert {key[2] for key in found if key[0] == 128} == {0, 16, 64}
    ids = tiny_tokenizer()(text.read_text(), add_special_tokens=False).input_ids[128:192]
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            network(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]), reduction="none"
        )
    row = found[64, 1, 16]
    assert row["tokens"] == 48
    assert row["loss"] == pytest.approx(float(losses[15:].sum()), abs=1e-2)
    assert f"{math.exp(sum(found[64, n, 0]['loss'] for n in (0, 1)) / 30):.2f}" in printed.out
    assert "128, YaRN" in printed.out
    assert "64, as trained" in printed.out


def test_a_text_that_is_too_short_is_an_error(monkeypatch, capsys, tmp_path, folder):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    (tmp_path / "text.txt").write_text("the end")
    words = [folder, "--text", tmp_path / "text.txt", "--context-lengths", "own", "--device", "cpu"]
    code, printed = call(monkeypatch, capsys, *words, "--out", tmp_path / "p.jsonl")
    assert code == 1
    assert "give a longer --text" in printed.err
