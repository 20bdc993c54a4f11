"""Drafts of a network are traced, and replayed to the same counts."""

from pathlib import Path

import pytest
from test_replay import ROOM, answers, recorded
from tiny import costs_of, tiny_engine, tiny_network
from tiny_heads import tiny_head

from benchmarks.__main__ import main
from benchmarks.decode.trace import write_traces
from benchmarks.decode.traces import read_traces
from graft.assemble.drafters import Drafters
from graft.assemble.resources import DraftResources
from graft.bench.simulate.recorded_model import SimulatedClock
from graft.bench.simulate.recordings import Cell, Recording
from graft.bench.simulate.replay import Machine, replay
from graft.errors import InputError

CELL = Cell("test", 0.0, 0)
RECORDINGS = Path(__file__).parents[1] / "guard" / "recordings.jsonl"


@pytest.fixture(scope="module")
def engine(one_thread):
    network = tiny_network()
    return tiny_engine(network, heads=[tiny_head("eagle2", network)])


@pytest.fixture(scope="module")
def traced(engine, tmp_path_factory):
    cells = {CELL: recorded(engine, 0.0)}
    path = tmp_path_factory.mktemp("traces") / "eagle2.jsonl.gz"
    write_traces(path, engine, "eagle2", cells)
    return cells, path


@pytest.mark.parametrize("draft", ["eagle2", "casd", "rasd-pld"])
def test_counts_are_those_of_the_real_run(engine, traced, draft):
    cells, path = traced
    clock = SimulatedClock()
    traces = read_traces(path, cells)
    resources = DraftResources(ready={"eagle2": traces.drafter(CELL, clock.spend)})
    runs = replay(cells[CELL], Drafters(resources)[draft], Machine(costs_of(1.0)), clock)
    real = answers(engine, draft, 0.0)
    assert sum(run.steps for run in runs) == sum(each.stats.steps for each in real)
    assert sum(run.drafted for run in runs) == sum(each.stats.num_draft_tokens for each in real)
    assert sum(sum(run.accepted_by_source.values()) for run in runs) > 0


def test_drafting_adds_its_share_of_a_step(traced):
    cells, path = traced

    def seconds(share):
        clock, traces = SimulatedClock(), read_traces(path, cells)
        traces.share = share
        drafter = Drafters(DraftResources(ready={"eagle2": traces.drafter(CELL, clock.spend)}))[
            "eagle2"
        ]
        runs = replay(cells[CELL], drafter, Machine(costs_of(1.0)), clock)
        return sum(run.decode_seconds for run in runs)

    assert seconds(2.0) > seconds(1.0) > seconds(0.0)


def test_outputs_of_another_model_are_refused(engine, tmp_path):
    other = Recording(1, "test", engine.encoder.prompt("the end").tokens, [5] * ROOM, ROOM)
    with pytest.raises(InputError, match="has another output here"):
        write_traces(tmp_path / "traces", engine, "eagle2", {CELL: [other]})


def test_traces_of_other_outputs_are_refused(traced):
    cells, path = traced
    changed = [Recording(each.number, "test", each.prompt, [7, 8], 2) for each in cells[CELL]]
    with pytest.raises(InputError, match="hold nothing"):
        read_traces(path, {CELL: changed}).drafter(CELL, print)


def test_a_file_without_traces_is_refused(tmp_path):
    path = tmp_path / "other"
    path.write_text("no")
    with pytest.raises(InputError, match="no file of traces"):
        read_traces(path, {})


def test_simulate_refuses_what_is_no_trace(capsys):
    assert main(["simulate", "--files", str(RECORDINGS), "--traces", "nowhere"]) == 1
    assert "nowhere is no file of traces" in capsys.readouterr().err


def test_simulate_prints_a_table(capsys):
    assert main(["simulate", "--files", str(RECORDINGS), "--draft", "copy"]) == 0
    assert "| copy |" in capsys.readouterr().out
