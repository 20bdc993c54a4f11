"""Cells of several suites by one load."""

import json
import sys

import pytest

from benchmarks.decode import cells
from graft.errors import InputError


@pytest.fixture
def call(monkeypatch):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["cells", *map(str, words)])
        cells.main()

    return run


@pytest.fixture
def prompts(call, tiny_folder, questions, tmp_path):
    path = tmp_path / "prompts.jsonl.gz"
    call("write", "--model", tiny_folder, "--prompts", f"spec_bench:{questions}:2", "--out", path)
    return path


def test_cells_have_a_row_for_each_preset_and_batch(call, prompts, tiny_folder, tmp_path):
    given = ["run", "--model", tiny_folder, "--prompts", prompts, "--out", tmp_path / "rows.jsonl"]
    given += ["--cell", "spec_bench:plain,copy", "--cell", "spec_bench:plain:3:1"]
    call(*given, "--max-tokens", 8, "--dtype", "fp32")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    rows = [line for line in lines if line["record"] == "row"]
    assert len(rows) == 2 * 6 + 2
    assert all(len(row["prompts"]) == row["batch"] for row in rows)
    alone = {(row["variant"], *row["prompts"]): row["output"] for row in rows[:12]}
    for number in {row["prompts"][0] for row in rows[:12]}:
        assert alone["plain", number] == alone["copy", number]
    more = ["--max-tokens", 8, "--dtype", "fp32", "--cell", "spec_bench:pld"]
    call(*given, *more)
    assert (tmp_path / "rows.jsonl").read_text().count('"variant":"pld"') == 6
    with pytest.raises(InputError, match="was measured with load_options {}, not"):
        call(*given, *more, "--load-options", '{"gamma": 2}')


def test_cells_have_the_variants_and_load_options_of_decode(call, prompts, tiny_folder, tmp_path):
    out, names = tmp_path / "rows.jsonl", ["plain", "sd@0.8", "sd@rejection", "rag+copy", "sd"]
    call(
        "run", "--model", tiny_folder, "--draft-model", tiny_folder, "--prompts", prompts,
        "--cell", "spec_bench", ",".join(names), "--load-options", '{"gamma": 2}',
        "--max-tokens", 12, "--dtype", "fp32", "--out", out,
    )  # fmt: skip
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [line for line in lines if line["record"] == "row"]
    assert {row["variant"] for row in rows} == {*names}
    outputs = {(row["variant"], *row["prompts"]): row["output"] for row in rows}
    for (name, number), output in outputs.items():
        assert name == "rag+copy" or output == outputs["plain", number]
    drafted = [row for row in rows if row["variant"] in ("sd", "sd@0.8")]
    assert all(row["drafted"] <= 2 * row["steps"] for row in drafted)
    assert all("error" not in row for row in rows)
    loads = [line["process"] for line in lines if line["record"] == "engine"]
    assert sorted(loads) == ["graft", "graft@rejection"]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("qmsum@12k:plain", cells.Cell("qmsum", 12288, ("plain",), 1, 0.0)),
        ("squad:plain,auto:4", cells.Cell("squad", 0, ("plain", "auto"), 4, 0.0)),
        ("squad:auto:2:0.7", cells.Cell("squad", 0, ("auto",), 2, 0.7)),
    ],
)
def test_cells_are_read_from_one_word_or_several(text, cell):
    assert cells.Cell.read(text) == cells.Cell.read(*text.split(":")) == cell


def test_presets_with_colons_need_several_words():
    cell = cells.Cell.read("medqa", "plain,rasd-rest:FOLDER", "2")
    assert (cell.presets, cell.batch) == (("plain", "rasd-rest:FOLDER"), 2)
    for wrong in ("medqa", "medqa:rest:FOLDER", "medqa:plain:1:0:7"):
        with pytest.raises(InputError, match="--cell takes SUITE.@CONTEXT. PRESETS"):
            cells.Cell.read(wrong)
