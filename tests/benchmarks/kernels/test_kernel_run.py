"""Whole runs over kernels and steps of a tiny shape."""

import numpy as np
import pytest
from made_up_rows import Recorder

from benchmarks.kernels import run as run_module
from benchmarks.kernels.run import run
from benchmarks.kernels.settings import KernelOptions
from benchmarks.kernels.steps import Stepper, fastest, refuse_too_large
from benchmarks.report import report_of
from graft.bench.result_file import open_results, read_results
from graft.bench.simulate.shapes import Ceilings
from graft.errors import InputError

TINY = "4/2/16/2/64/128/128"


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    monkeypatch.setattr(run_module, "measure_ceilings", lambda plan: Ceilings(1e10, 1e11))


def options(**changes):
    given = {"shape": TINY, "contexts": (24, 40), "nodes": (4, 8), "device": "cpu", "repeats": 1}
    return KernelOptions(**{**given, **changes})


def measure(path, progress, **changes):
    with open_results(path) as file:
        run(options(**changes), file, progress)
    return file.results


def test_attention_steps_and_memory_are_measured_and_shown():
    results = measure(None, Recorder())
    points = {(r["context"], r["nodes"]) for r in results.rows if r["part"] == "attention"}
    assert points == {(24, 4), (24, 8), (40, 4), (40, 8)}
    ours = [row for row in results.rows if row["part"] == "step" and row["ours"]]
    assert {(row["context"], row["nodes"]) for row in ours} == points | {(24, 1), (40, 1)}
    assert any(row["variant"] == "eager" and row["seconds"] > 0 for row in results.rows)
    [memory] = [row for row in results.rows if row["part"] == "memory"]
    assert "rest_bytes" not in memory  # not measured on a CPU
    found = report_of(results)
    assert [table.title.split()[0] for table in found.tables] == ["attention", "a", "peak"]
    assert len(found.figures) == 2
    assert "| 24 | 4 |" in found.as_markdown()


def test_an_interrupted_run_resumes(tmp_path):
    path = tmp_path / "kernels.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure(path, Recorder(interrupt_after=7))
    assert len(read_results(path).rows) == 7
    assert len(measure(path, Recorder()).headers) == 2
    before = path.read_text()
    measure(path, Recorder())
    assert path.read_text() == before


def test_another_shape_does_not_go_into_the_same_file(tmp_path):
    path = tmp_path / "kernels.jsonl"
    measure(path, Recorder(), parts=("attention",), nodes=(1,), contexts=(24,))
    with pytest.raises(InputError, match="choose another --out"):
        measure(path, Recorder(), shape="8/2/16")


def test_heads_alone_have_no_steps_and_a_message_says_so():
    progress = Recorder()
    results = measure(None, progress, shape="4/2/16", contexts=(24,), nodes=(2,))
    assert progress.lines == ["no whole steps: 4/2/16 has heads alone"]
    assert {row["part"] for row in results.rows} == {"attention"}


def test_too_large_steps_are_refused_before_they_are_built(monkeypatch):
    monkeypatch.setattr("benchmarks.kernels.steps.free_memory", lambda device: 1000)
    with pytest.raises(InputError, match="lower --layers or --contexts"):
        refuse_too_large(options().plan())


def test_the_cache_of_a_step_holds_random_numbers():
    stepper = Stepper.open(options().plan(), fastest)
    rows = stepper.model.arena.storage.read(stepper.extent.start + np.arange(48))
    assert rows.std() == pytest.approx(1, rel=0.2)
    (logits,) = stepper.call(40, 8)()
    assert logits.shape == (8, 128)
    assert stepper.extent.length == 40
