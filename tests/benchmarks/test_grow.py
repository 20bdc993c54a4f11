"""Grown models answer as the ungrown one; their gates fail where they should."""

import json
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch
from daily import daily
from safetensors.torch import load_file, save_file
from tiny_heads import tiny_head
from transformers import AutoModelForCausalLM

from benchmarks import grow, grow_check
from graft import SamplingParams, load
from graft.bench.simulate.shapes import Shape, read_shape
from graft.models.checkpoints.pretrained import locate
from graft.models.heads.files import write_head

SHAPES = {"grown": (8, 4), "grown-kv": (8, 8)}  # heads, KV heads; the tiny model has 4 and 2


@pytest.fixture
def call(monkeypatch):
    def run(module, **options):
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        monkeypatch.setattr(sys, "argv", [module.__name__, *words])
        return module.main()

    return run


@pytest.fixture
def grown(call, tiny_folder, tmp_path):
    def make(name):
        heads, kv_heads = SHAPES[name]
        sizes = {"inner": 256, "heads": heads, "kv_heads": kv_heads, "device": "cpu"}
        call(grow, model=tiny_folder, out=tmp_path / name, **sizes)
        return tmp_path / name

    return make


@pytest.fixture
def check(call, tiny_folder, questions, monkeypatch):
    def checked(folder):
        monkeypatch.setattr(grow_check, "TOLERANCE", 100)  # a shared CPU's times say nothing
        given = {"model": tiny_folder, "grown": folder, "questions": questions / "question.jsonl"}
        given |= {"dtype": "fp32", "device": "cpu", "contexts": "64", "limit": 2}
        given |= {"max_tokens": 24, "repeats": 1, "shape": "8/4/16/2/64/256/128"}
        return call(grow_check, **given)

    return checked


@pytest.mark.parametrize("name", SHAPES)
def test_grown_model_passes_its_gates(grown, check, capsys, name):
    assert check(grown(name)) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert last == "both gates passed"
    texts, [step] = ([json.loads(row) for row in part] for part in (rows[:2], rows[2:]))
    assert not any("differs_at" in row for row in texts)
    assert step["real_context"] == 64 * (2 if name == "grown-kv" else 1)


def test_another_text_fails(grown, check, capsys):
    folder = grown("grown")
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name.endswith("down_proj.weight"):
                tensor[:, 128:] = torch.randn(tensor[:, 128:].shape)
        save_file(tensors, file, metadata={"format": "pt"})
    assert check(folder) == 1
    assert "2 checks failed" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "passed"), [(1.09, True), (0.91, True), (1.12, False)])
def test_step_time_is_within_a_tenth_of_the_real_shapes(seconds, passed):
    assert grow_check.judged(64, 64, seconds, 1.0)["passed"] == passed


def test_kv_factor_of_both_shapes():
    shapes = [Shape("grown", 48, 8, 128, 28), Shape("grown-kv", 32, 32, 128, 28)]
    assert [grow_check.kv_factor(each, read_shape("llama-8b")) for each in shapes] == [1, 4]


@pytest.mark.parametrize(
    ("kind", "name"),
    daily(product(["eagle3", "longspec"], SHAPES), ("eagle3", "grown")),
)
def test_grown_head_drafts_as_the_ungrown_one(grown, call, tiny_folder, tmp_path, kind, name):
    network = AutoModelForCausalLM.from_pretrained(tiny_folder)
    more = {"cross_layers": 2} if kind == "longspec" else {}
    head, checkpoint = tiny_head(kind, network, **more), locate(str(tiny_folder))
    head.config = replace(head.config, fingerprint=checkpoint.fingerprint)
    write_head(tmp_path / "head", head, dtype="bf16")  # as grown heads are
    folder = grown(name)
    options = {"model": tiny_folder, "grown": folder, "inner": 256, "device": "cpu"}
    call(grow, head=tmp_path / "head", out=tmp_path / "large", **options)
    stats = [
        load(str(model), head=str(head), draft=kind, dtype="fp32")
        .generate([3, 5, 7, 9] * 8, SamplingParams(max_tokens=48, seed=1, ignore_eos=True))
        .stats
        for model, head in ((tiny_folder, tmp_path / "head"), (folder, tmp_path / "large"))
    ]
    assert stats[0].per_step_drafted == stats[1].per_step_drafted
    assert sum(stats[0].per_step_accepted)
    assert stats[0].per_step_accepted == stats[1].per_step_accepted


@pytest.mark.parametrize("kind", ["longspec", "eagle3"])
def test_an_untrained_head_drafts_for_the_grown_model_and_changes_nothing(
    grown, call, tmp_path, kind
):
    target = grown("grown")
    call(grow, model=target, untrained=kind, out=tmp_path / kind)
    engine = load(str(target), head=str(tmp_path / kind), dtype="fp32", prefix_cache=0)
    params = SamplingParams(max_tokens=24)
    plain = engine.generate("the cat and the hen", params, draft="plain")
    drafted = engine.generate("the cat and the hen", params, draft=kind)
    assert drafted.token_ids == plain.token_ids
    assert sum(drafted.stats.drafted_by_source.values()) > 0
