"""Presets at the price of a shape, on texts that are given."""

import gzip
import json
import sys

import pytest

from benchmarks.decode import given_text, shapes
from graft.models.step_costs import REFERENCE, StepCosts

COPIED = [5, 9, 2, 11, 7, 3, 14, 8] * 6


@pytest.fixture
def tiny_shape(monkeypatch):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    monkeypatch.setitem(shapes.SIZES, "tiny", ("Qwen3Moe", sizes))
    return "tiny"


def test_presets_write_the_given_text_and_copies_are_accepted(tiny_shape, monkeypatch, tmp_path):
    monkeypatch.setattr(given_text, "measure", lambda _: StepCosts.read(REFERENCE))
    answers = tmp_path / "answers.jsonl.gz"
    about = {"suite": "edits", "category": "edit", "context": 0}
    rows = [about | {"number": i, "token_ids": COPIED[i:], "answer": COPIED[:24]} for i in (1, 3)]
    answers.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    out = tmp_path / "rows.jsonl"
    words = ["run", "--shape", tiny_shape, "--answers", str(answers), "--presets", "plain,copy"]
    monkeypatch.setattr(sys, "argv", ["given_text", *words, "--out", str(out)])
    given_text.main()
    found = [json.loads(line) for line in out.read_text().splitlines()][1:]
    assert [(row["number"], row["tokens"]) for row in found] == [(1, 24)] * 2 + [(3, 24)] * 2
    steps = {row["preset"]: row["steps"] for row in found}
    assert steps["copy"] < steps["plain"] / 2


def test_a_real_model_writes_the_answers(tiny_folder, monkeypatch, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl.gz", tmp_path / "answers.jsonl.gz"
    row = {"suite": "s", "category": "c", "context": 0, "number": 1, "token_ids": [5, 6, 7]}
    prompts.write_bytes(gzip.compress(json.dumps(row).encode()))
    words = ["--model", str(tiny_folder), "--prompts", str(prompts), "--max-tokens", "6"]
    monkeypatch.setattr(sys, "argv", ["given_text", "write", *words, "--out", str(out)])
    given_text.main()
    written = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert [{**each, "answer": len(each["answer"])} for each in written] == [{**row, "answer": 6}]
