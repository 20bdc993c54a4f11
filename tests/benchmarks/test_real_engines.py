"""Graft's and transformers' real workers on a tiny model."""

import shutil
from dataclasses import replace

import pytest
from made_up_answers import Recorder

from graft.bench.records import read_results
from graft.bench.report import report
from graft.bench.runner import run
from graft.bench.simulate.run import Simulation, simulate


@pytest.mark.slow
def test_presets_and_transformers_write_the_same_tokens(
    settings, tiny_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    out = tmp_path / "results.jsonl"
    watch = Recorder()
    asked = settings(
        limit=1,
        categories=("rag", "qa"),
        max_tokens=20,
        drafts=("plain", "pld", "auto"),
        peers=("hf", "hf-pld", "hf-assisted"),
        draft_model=str(tiny_folder),
        temperatures=(0.0, 1.0),
        batches=(1, 2),
    )
    assert run(asked, out, watch)
    assert watch.lines == [
        "hf-pld takes one prompt at a time: no batches",
        "hf-assisted takes one prompt at a time: no batches",
    ]
    results = read_results(out)
    assert results.workers["auto"]["settings"]["prefix_cache"] == 0
    told = report(results)
    assert told.notes == []
    for row in told.rows:
        if row.temperature == 0 or row.system in ("plain", "pld", "auto"):
            assert row.same == row.compared > 0, row
    drafted = [a for a in results.answers.values() if a.system == "pld" and a.drafted]
    assert drafted
    for answer in drafted:
        assert sum(answer.drafted_by_source.values()) == answer.drafted
        for source, accepted in answer.accepted_by_source.items():
            assert accepted <= answer.drafted_by_source[source]
    for answer in results.answers.values():
        assert set(answer.finish_reasons) <= {"length", "stop"}
        assert 0 < answer.prefill_seconds <= answer.total_seconds
        assert answer.decode_seconds == answer.total_seconds - answer.prefill_seconds
        if answer.system in ("plain", "hf"):
            assert answer.tokens - answer.batch == answer.steps
        if answer.system != "hf":
            assert answer.tokens_per_step is None or answer.tokens_per_step >= 1


@pytest.mark.slow
def test_a_simulation_counts_what_real_runs_count(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    out = tmp_path / "results.jsonl"
    drafts = ("plain", "pld", "copy", "auto")
    asked = settings(limit=2, max_tokens=40, drafts=drafts, temperatures=(0.0, 1.0), batches=(1, 3))
    assert run(asked, out, Recorder())
    found = simulate(Simulation(files=[out], drafts=drafts, batches=(1, 3))).outcomes
    compared = [each for each in found if each.measured_tokens_per_step is not None]
    assert {(each.draft, each.batch, each.cell.temperature) for each in compared} == {
        (draft, batch, temperature)
        for draft in drafts
        for batch in (1, 3)
        for temperature in (0.0, 1.0)
    }
    assert any(each.tokens_per_step > 1 for each in compared)
    for each in compared:
        assert each.tokens_per_step == pytest.approx(each.measured_tokens_per_step), each


@pytest.mark.slow
def test_compiled_transformers_writes_the_same_tokens(settings, tmp_path, monkeypatch):
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler")
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    out = tmp_path / "results.jsonl"
    asked = settings(limit=1, categories=("rag", "qa"), max_tokens=12, drafts=("plain",))
    asked = replace(asked, peers=("hf-compile",), batches=(1, 2))
    assert run(asked, out, Recorder()), out.with_suffix(".hf-compile.log").read_text()
    results = read_results(out)
    assert results.workers["hf-compile"]["settings"]["compile_mode"] == "reduce-overhead"
    told = report(results)
    assert {row.batch for row in told.rows if row.system == "hf-compile"} == {1, 2}
    for row in told.rows:
        assert row.same == row.compared > 0, row


def test_without_a_compiler_hf_compile_is_left_out_with_one_line(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    watch = Recorder()
    asked = settings(limit=1, categories=("qa",), drafts=(), peers=("hf-compile",))
    assert not run(asked, tmp_path / "results.jsonl", watch)
    [line] = watch.lines
    assert "hf-compile needs a compiler, one of g++, clang++, c++" in line
