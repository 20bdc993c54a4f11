import json

import numpy as np
import pytest
from made_up_answers import Recorder

from benchmarks.kernels import run as run_module
from benchmarks.kernels.floor import Ceilings
from benchmarks.kernels.records import Figures, Journal, open_journal, read_figures
from benchmarks.kernels.report import sheets
from benchmarks.kernels.run import run
from benchmarks.kernels.settings import Asked
from benchmarks.kernels.steps import Stepper, fastest, refuse_too_large
from graft.errors import InputError

TINY = "4/2/16/2/64/128/128"


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    monkeypatch.setattr(run_module, "measure_ceilings", lambda settings: Ceilings(1e10, 1e11))


@pytest.fixture
def asked():
    def make(**changes):
        given = {"shape": TINY, "contexts": "24,40", "nodes": "4,8", "device": "cpu", "repeats": 1}
        return Asked(**{**given, **changes}).settings()

    return make


class Interrupting(Recorder):
    """Ctrl-C after so many measurements."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def advance(self):
        super().advance()
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_everything_is_measured_and_shown(asked):
    journal = Journal(Figures())
    run(asked(), journal, Recorder())
    found = journal.figures
    points = {(f.context, f.nodes) for f in found.figures.values() if f.part == "attention"}
    assert points == {(24, 4), (24, 8), (40, 4), (40, 8)}
    ours = [f for f in found.figures.values() if f.part == "step" and f.ours]
    assert {(f.context, f.nodes) for f in ours} == points | {(24, 1), (40, 1)}
    assert any(f.what == "eager" and f.seconds > 0 for f in found.figures.values())
    assert found.memory.rest is None  # nobody counts on a CPU
    assert [sheet.title.split()[0] for sheet in sheets(found)] == ["attention", "whole", "memory"]


def test_an_interrupted_run_goes_on_where_it_stopped(asked, tmp_path):
    out = tmp_path / "kernels.jsonl"
    with open_journal(out) as journal, pytest.raises(KeyboardInterrupt):
        run(asked(), journal, Interrupting(after=7))
    assert len(read_figures(out).figures) == 7
    with open_journal(out) as journal:
        run(asked(), journal, Recorder())
    kinds = [json.loads(line)["record"] for line in out.read_text().splitlines()]
    assert kinds.count("kernels") == 2
    assert kinds.count("figure") == len(read_figures(out).figures)
    watch, before = Recorder(), out.read_text()
    with open_journal(out) as journal:
        run(asked(), journal, watch)
    assert watch.lines == [f"all of it stands in {out}; name another --out to measure again"]
    assert out.read_text() == before


def test_another_shape_does_not_go_into_the_same_file(asked, tmp_path):
    out = tmp_path / "kernels.jsonl"
    with open_journal(out) as journal:
        run(asked(only="attention", nodes="1", contexts="24"), journal, Recorder())
    with open_journal(out) as journal, pytest.raises(InputError, match="name another --out"):
        run(asked(shape="8/2/16"), journal, Recorder())


def test_heads_alone_have_no_steps_and_a_line_says_so(asked):
    watch = Recorder()
    journal = Journal(Figures())
    run(asked(shape="4/2/16", contexts="24", nodes="2"), journal, watch)
    assert watch.lines == ["no whole steps: 4/2/16 names heads alone"]
    assert {f.part for f in journal.figures.figures.values()} == {"attention"}


def test_what_does_not_fit_is_refused_before_it_is_built(asked, monkeypatch):
    monkeypatch.setattr("benchmarks.kernels.steps.free_memory", lambda device: 1000)
    with pytest.raises(InputError, match="lower --layers or --contexts, or take --only attention"):
        refuse_too_large(asked())


def test_the_cache_of_a_step_holds_random_numbers(asked):
    stepper = Stepper.open(asked(), fastest)
    rows = stepper.model.arena.storage.read(stepper.extent.start + np.arange(48))
    assert rows.std() == pytest.approx(1, rel=0.2)
    (logits,) = stepper.call(40, 8)()
    assert logits.shape == (8, 128)
    assert stepper.extent.length == 40


def test_a_file_of_another_kind_is_one_line(tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text('{"record": "header", "format": 1}\n')
    with pytest.raises(InputError, match="line 1 was not written by this version"):
        read_figures(file)
    file.write_text("")
    with pytest.raises(InputError, match="has no header"):
        read_figures(file)
