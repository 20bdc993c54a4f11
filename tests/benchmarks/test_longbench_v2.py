"""LongBench v2: both forms of every question, from the files as they are published."""

import json

import pytest

from benchmarks.quality.scores import SCORES
from benchmarks.suites import longbench_v2
from benchmarks.suites.task import read_suite
from graft.errors import InputError

ROW = {
    "context": "A long text about owls.",
    "question": "What is it about?",
    "choices": {"A": "cats", "B": "owls", "C": "dogs", "D": "cows"},
    "answer": "B",
    "length": "short",
}
OTHER = {**ROW, "context": "Another text.", "length": "medium", "answer": "D"}


def write(folder, name, *rows):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_every_question_has_two_forms_in_one_half(tmp_path):
    write(tmp_path, "short.0.jsonl", ROW, ROW)
    prompts = read_suite("longbench_v2", write(tmp_path, "medium.0.jsonl", OTHER))
    assert [each.category for each in prompts] == [
        "medium-direct", "medium-cot", "short-direct", "short-cot",
    ]  # fmt: skip
    assert [each.number % 2 for each in prompts] == [1, 1, 0, 0]
    direct, cot = prompts[2:]
    text = direct.content[0]["content"]
    assert all(f"({letter}) {choice}" in text for letter, choice in ROW["choices"].items())
    assert direct.document in text
    assert (direct.follow_up, direct.gold.references) == ("", ("B",))
    assert "{answer}" in cot.follow_up
    assert cot.document not in cot.follow_up
    assert "step by step" in cot.content[0]["content"]


def test_the_requested_form_counts(tmp_path):
    direct, _ = longbench_v2.read(write(tmp_path, "short.0.jsonl", ROW))
    asked = direct.content[0]["content"]
    sentence = asked[asked.index("The correct answer is") :]
    answer = sentence.replace("insert letter here", "B")
    assert SCORES["choice"]["accuracy"](answer, direct.gold.references) == 1


def test_the_authors_own_file_is_read_too(tmp_path):
    row = {key: value for key, value in ROW.items() if key != "choices"}
    row |= {f"choice_{letter}": choice for letter, choice in ROW["choices"].items()}
    (tmp_path / "data.json").write_text(json.dumps([row]))
    assert len(longbench_v2.read(tmp_path)) == 2
    assert longbench_v2.read(tmp_path) == longbench_v2.read(tmp_path / "data.json")


def test_a_row_of_something_else_is_named(tmp_path):
    with pytest.raises(InputError, match="line 1 is not a LongBench v2 question"):
        longbench_v2.read(write(tmp_path, "short.0.jsonl", {**ROW, "answer": "E"}))
