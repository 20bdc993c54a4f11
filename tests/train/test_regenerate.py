"""The target's own answers as data, asked for once."""

import json
from dataclasses import replace

import pytest

from graft.errors import InputError
from graft.train import regenerate as module
from graft.train.regenerate import regenerate
from graft.train.run import train


@pytest.fixture
def asking(settings, monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")
    return replace(settings, regenerate=10, answer_tokens=24)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_appended_to_the_file(asking, monkeypatch):
    path = regenerate(replace(asking, regenerate=4), lambda line: None)
    first = lines(path)
    assert [record["messages"][0]["content"] for record in first] == [
        f"Question {n}?" for n in range(4)
    ]
    assert all(record["messages"][1]["role"] == "assistant" for record in first)
    with path.open("a") as file:
        file.write('{"messages": [{"ro')  # torn by a kill
    regenerate(asking, lambda line: None)
    assert lines(path)[:4] == first
    assert len(lines(path)) == 10
    monkeypatch.setattr(module, "load", None)
    assert regenerate(asking, lambda line: None) == path  # nothing is left to ask


def test_several_processes_answer_a_part_each(asking, monkeypatch):
    given, load = [], module.load
    monkeypatch.setattr(
        module, "load", lambda *a, **b: given.append(b["kv_cache"]) or load(*a, **b)
    )
    asking = replace(asking, regenerate=3, answer_tokens=2, part="2/4", kv_cache=0.004)
    found = lines(regenerate(asking, lambda line: None))
    assert [each["messages"][0]["content"] for each in found] == [
        f"Question {n}?" for n in (1, 5, 9)
    ]
    assert given == [4_000_000]


@pytest.mark.parametrize("part", ["0/4", "5/4", "2", "1/2/3", "a/b"])
def test_a_part_has_a_number_and_a_count(asking, part):
    with pytest.raises(InputError, match="such as 2/8"):
        replace(asking, part=part)


def test_only_the_answers_are_in_the_loss(asking):
    said = []
    assert train(replace(asking, regenerate=40, steps=2), said.append)
    assert "40 questions answered" in said
    assert len(lines(asking.work / "answers.jsonl")) == 40
    assert "own answers to the first 40 questions" in (asking.out / "README.md").read_text()


def test_a_question_that_does_not_fit_has_no_answer(asking, tmp_path):
    data = tmp_path / "long.jsonl"
    turns = [[{"role": "user", "content": text}] for text in ("x " * 4000, "the end?")]
    data.write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    path = regenerate(replace(asking, data=(str(data),), regenerate=2), lambda line: None)
    assert [len(record["messages"]) for record in lines(path)] == [1, 2]


def test_data_without_questions_is_an_error(asking, tmp_path):
    (tmp_path / "text.txt").write_text("No question here.")
    with pytest.raises(InputError, match="found no conversations"):
        regenerate(replace(asking, data=(str(tmp_path / "text.txt"),)), lambda line: None)


def test_answers_can_be_generated_alone_and_trained_on_later(asking):
    file = asking.out.with_name("answers.jsonl")
    assert train(replace(asking, kind="answers", out=file, regenerate=40), lambda line: None)
    assert len(lines(file)) == 40
    assert train(replace(asking, data=(str(file),), regenerate=0, steps=2), lambda line: None)
