"""Tables of step costs: read between the lines by hand, kept in files, found again."""

import json

import numpy as np
import pytest
import torch
from late import Late
from tiny_architectures import build

from graft.errors import InputError
from graft.home import home
from graft.kernels.tree_layout import TreeLayout
from graft.models import step_costs
from graft.models.language_model import Forward, LanguageModel
from graft.models.load import build_forward
from graft.models.step_costs import NODES, REFERENCE, StepCosts, costs_for, measure

TABLE = StepCosts((100, 200), (1, 2, 4), ((10.0, 12.0, 20.0), (14.0, 12.0, 30.0)))


@pytest.mark.parametrize(
    ("length", "nodes", "seconds"),
    [
        (100, 1, 10),
        (100, 2, 12),
        (100, 3, 16),  # half-way between 2 and 4 nodes
        (100, 4, 20),
        (50, 3, 16),  # nothing is cheaper than the shortest context
        (0, 1, 10),
        (200, 1, 12),  # measured 14, but fewer nodes never cost more
        (200, 2, 12),
        (200, 3, 21),  # half-way, as measured
        (150, 4, 25),  # half-way between the contexts
        (300, 4, 40),  # the same slope beyond
    ],
)
def test_interpolation(length, nodes, seconds):
    assert TABLE.at(length)[nodes] == pytest.approx(seconds)


def test_a_shorter_context_never_costs_more():
    table = StepCosts((100, 200), (1, 2), ((10.0, 12.0), (8.0, 13.0)))
    assert table.at(100).tolist()[1:] == pytest.approx([8, 12])
    assert table.at(200).tolist()[1:] == pytest.approx([8, 13])
    assert table.at(100_000)[1] == pytest.approx(8)


def test_one_step_that_was_held_up_says_nothing_of_larger_ones():
    table = StepCosts((100,), (1, 2, 3, 4), ((10.0, 19.0, 11.0, 12.0),))
    assert table.at(100).tolist()[1:] == pytest.approx([10, 11, 11, 12])


def test_one_measured_length_serves_all():
    table = StepCosts((0,), (1, 3), ((1.0, 3.0),))
    assert table.at(5000)[1:].tolist() == [1, 2, 3]


def test_a_table_survives_its_file(tmp_path):
    path = tmp_path / "deep" / "costs.json"
    TABLE.save(path)
    assert StepCosts.read(path) == TABLE
    assert [file.name for file in path.parent.iterdir()] == ["costs.json"]


GOOD = {"lengths": [100], "nodes": [1, 2], "seconds": [[1.0, 2.0]]}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "3",
        "{}",
        json.dumps(GOOD)[:-5],
        json.dumps(GOOD | {"seconds": [[1.0]]}),
        json.dumps(GOOD | {"seconds": [[1.0, 2.0], [1.0, 2.0]]}),
        json.dumps(GOOD | {"seconds": [["a", "b"]]}),
        json.dumps(GOOD | {"seconds": [[1.0, None]]}),
        json.dumps(GOOD | {"seconds": 5}),
        json.dumps(GOOD | {"nodes": None}),
        json.dumps(GOOD | {"nodes": [2, 1]}),
        json.dumps(GOOD | {"seconds": [[1.0, -2.0]]}),
        json.dumps(GOOD | {"seconds": [[1.0, float("nan")]]}),
        json.dumps(GOOD | {"lengths": ["x"]}),
        json.dumps({"lengths": [], "nodes": [], "seconds": []}),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(InputError, match="is not a table of step costs") as error:
        StepCosts.read(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_bytes_that_are_not_text_are_refused(tmp_path):
    path = tmp_path / "costs.json"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="is not a table"):
        StepCosts.read(path)


def test_the_reference_table_covers_what_is_measured_and_rises():
    table = StepCosts.read(REFERENCE)
    assert table.nodes == NODES
    for length in (0, 1000, 100_000):
        assert (np.diff(table.at(length)) >= 0).all()
        assert (table.at(length) > 0).all()


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    torch.manual_seed(0)
    forward, _ = build_forward(build("llama"), name="tiny", kind="lean")
    return LanguageModel(forward, vocabulary=64, context_length=512)


def find(model: LanguageModel) -> StepCosts:
    return costs_for(model, "fingerprint", "fp32", "cpu")


def test_the_environment_names_the_reference_or_a_file(model, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    assert find(model) == StepCosts.read(REFERENCE)
    TABLE.save(tmp_path / "mine.json")
    monkeypatch.setenv("GRAFT_COSTS", str(tmp_path / "mine.json"))
    assert find(model) == TABLE
    monkeypatch.setenv("GRAFT_COSTS", str(tmp_path / "missing.json"))
    with pytest.raises(InputError, match=r"missing\.json"):
        find(model)


def test_costs_are_measured_once_and_a_damaged_table_again(model, monkeypatch):
    monkeypatch.delenv("GRAFT_COSTS", raising=False)
    calls = []
    monkeypatch.setattr(step_costs, "measure", lambda m: calls.append(m) or TABLE)
    assert find(model) == find(model) == TABLE
    assert len(calls) == 1
    (file,) = (home() / "costs").iterdir()
    file.write_text("{")
    assert find(model) == TABLE
    assert len(calls) == 2
    assert StepCosts.read(file) == TABLE


def test_measuring_takes_real_steps_and_gives_its_rows_back(model):
    table = measure(model)
    assert (table.nodes, table.lengths) == (NODES, (128,))
    assert all(seconds > 0 for row in table.seconds for seconds in row)
    assert model.arena.taken == 0


def test_measuring_a_model_with_a_very_short_context(model):
    short = LanguageModel(model.forward, vocabulary=64, context_length=40)
    table = measure(short)
    assert table.lengths == (0,)
    assert max(table.nodes) <= 40


def test_steps_larger_than_measured_cost_what_the_last_rows_did():
    table = StepCosts((100,), (1, 2, 4), ((10.0, 10.0, 14.0),))
    assert table.beyond(50, 1, 2).tolist() == pytest.approx([10, 10, 12])
    assert table.beyond(50, 3, 3).tolist() == pytest.approx([12, 14, 16, 18])
    assert table.beyond(50, 104, 1).tolist() == pytest.approx([214, 216])


def test_every_sequence_of_a_batch_reads_a_context_of_its_own():
    """Rows share the weights' time; a context's time comes once for each sequence, by its rows."""
    table = StepCosts((100, 200), (1, 2, 4), ((10.0, 11.0, 13.0), (20.0, 22.0, 26.0)))
    assert table.step(200, 4, sequences=4) == pytest.approx(13 + 4 * 10)
    assert table.step(200, 4, sequences=2) == pytest.approx(13 + 2 * 11)
    assert table.step(150, 4, sequences=2) == pytest.approx(13 + 11)
    assert table.step(200, 4) == pytest.approx(26)
    assert table.step(50, 4, sequences=4) == table.step(50, 4)
    assert table.beyond(200, 2, 2, sequences=2).tolist() == pytest.approx([31, 33, 35])


class Device(Late):
    """Its clock goes on by a second for a step, and by what contexts take beyond what it reads
    while it waits for the weights anyway."""

    free, pace = 8000, 1e-3

    def __init__(self, inner: Forward) -> None:
        super().__init__(inner)
        self.now = 0.0

    def run(self, tokens, layout: TreeLayout, outputs: np.ndarray) -> torch.Tensor:  # noqa: ANN001
        keys = sum(count for segments in layout.segments for _, count in segments)
        self.now += 1 + self.pace * max(keys - self.free, 0)
        return torch.zeros(len(outputs), 64)


@pytest.mark.parametrize(("rows", "many"), [(1_000_000, 16), (10_000, 4)])
def test_a_device_is_measured_with_many_sequences_too(model, monkeypatch, rows, many):
    """One context alone seems to be free; that of many follows from the step they share."""
    device = Device(model.forward)
    monkeypatch.setattr(step_costs.time, "perf_counter", lambda: device.now)
    there = LanguageModel(device, vocabulary=64, context_length=5000, max_rows=rows)
    table = measure(there)
    assert table.lengths == (128, 2048, 128 + many * 1920)
    assert table.step(2048, 1) == 1
    beyond = max(many * 2048 - Device.free, 0)
    for nodes in (1, 4):  # of each
        step = table.step(2048, many * nodes, sequences=many)
        assert step == pytest.approx(1 + Device.pace * beyond)
    assert there.arena.taken == 0


def test_a_device_that_fits_one_sequence_is_measured_with_one(model):
    small = LanguageModel(Device(model.forward), vocabulary=64, context_length=5000, max_rows=4112)
    assert measure(small).lengths == (128, 2048)
