"""Graft and transformers on a tiny model."""

import shutil

import pytest

from graft.bench.decoding import decode_rows
from graft.bench.result_file import ENGINE
from graft.bench.simulate.run import Simulation, simulate
from graft.bench.summary import summarize


@pytest.fixture(autouse=True)
def reference_costs(monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")


@pytest.mark.slow
def test_presets_and_transformers_generate_the_same_tokens(settings, measure, tiny_folder):
    chosen = settings(
        limit=1,
        categories=("rag", "qa"),
        max_tokens=20,
        drafts=("plain", "pld", "auto"),
        engines=("transformers", "transformers-lookup", "transformers-assisted"),
        draft_model=str(tiny_folder),
        temperatures=(0.0, 1.0),
        batches=(1, 2),
    )
    complete, results, progress = measure(chosen)
    assert complete
    assert progress.lines == [
        "transformers-lookup takes one prompt at a time: no batches",
        "transformers-assisted takes one prompt at a time: no batches",
    ]
    _, summaries = summarize(results)
    for each in summaries:
        if each.temperature == 0 or each.variant in chosen.drafts:
            assert each.same == each.compared > 0, each
    rows = decode_rows(results)
    for row in rows:
        assert set(row.finish_reasons) <= {"length", "stop"}
        assert 0 < row.prefill_seconds <= row.total_seconds
        if row.variant in ("plain", "transformers"):
            assert row.tokens - row.batch == row.steps
    drafted = [row for row in rows if row.variant == "pld" and row.drafted]
    assert drafted
    for row in drafted:
        assert sum(row.drafted_by_source.values()) == row.drafted
        for source, accepted in row.accepted_by_source.items():
            assert accepted <= row.drafted_by_source[source]


@pytest.mark.slow
def test_simulated_counts_equal_those_of_real_runs(settings, measure):
    drafts = ("plain", "pld", "copy", "auto")
    chosen = settings(
        limit=2, max_tokens=40, drafts=drafts, temperatures=(0.0, 1.0), batches=(1, 3)
    )
    assert measure(chosen)[0]
    found = simulate(Simulation(files=[chosen.out], drafts=drafts, batches=(1, 3))).outcomes
    compared = [(each.predicted, each.measured) for each in found if each.measured]
    assert {(each.variant, each.batch, each.temperature) for each, _ in compared} == {
        (draft, batch, temperature)
        for draft in drafts
        for batch in (1, 3)
        for temperature in (0.0, 1.0)
    }
    assert any(each.tokens_per_step > 1 for each, _ in compared)
    for each, measured in compared:
        assert each.tokens_per_step == pytest.approx(measured.tokens_per_step), each


@pytest.mark.slow
def test_compiled_transformers_generates_the_same_tokens(settings, measure):
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler")
    given = {"limit": 1, "categories": ("rag", "qa"), "max_tokens": 12, "drafts": ("plain",)}
    chosen = settings(**given, engines=("transformers-compiled",), batches=(1, 2))
    complete, results, progress = measure(chosen)
    assert complete, progress.lines
    compiled = results.records[ENGINE][-1]["settings"]
    assert compiled["compile_mode"] == "reduce-overhead"
    assert all(each.same == each.compared > 0 for each in summarize(results)[1])


def test_without_a_compiler_there_is_one_message(settings, measure, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    given = {"limit": 1, "categories": ("qa",), "drafts": ()}
    complete, _, progress = measure(settings(**given, engines=("transformers-compiled",)))
    assert not complete
    [line] = progress.lines
    assert "transformers-compiled needs a compiler, one of g++, clang++, c++" in line
