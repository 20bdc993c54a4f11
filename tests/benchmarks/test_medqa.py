import json

import pytest

from benchmarks.suites.medqa import read
from benchmarks.suites.task import Gold
from graft.errors import InputError


def row(number, letters="ABCD"):
    options = {letter: f"drug {letter}" for letter in letters}
    asked = {"realidx": number, "question": f"What helps {number}?", "options": options}
    return asked | {"answer_idx": "B"}


@pytest.fixture
def folder(tmp_path):
    sets = {"medqa": [row(0), row(1)], "medbullets": [row(0, "ABCDE"), row(5), row(5)]}
    for name, rows in sets.items():
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps(each) + "\n" for each in rows)
        (tmp_path / name / "test.jsonl").write_text(lines)
    return tmp_path


def test_both_sets_are_categories_and_repeated_questions_are_dropped(folder):
    prompts = read(folder)
    assert [(p.number, p.category) for p in prompts] == [
        (1, "medqa"), (2, "medqa"), (3, "medbullets"), (4, "medbullets"),
    ]  # fmt: skip
    content = prompts[2].content[0]["content"]
    assert content.startswith("What helps 0?\n\nA. drug A\nB. drug B\n")
    assert "E. drug E\n\nThink briefly" in content
    assert prompts[2].gold == Gold("letters", ("B",))


def test_one_file_is_one_category(folder):
    assert {p.category for p in read(folder / "medqa" / "test.jsonl")} == {"medqa"}
    assert {p.category for p in read(folder / "medbullets" / "test.jsonl")} == {"medbullets"}


@pytest.mark.parametrize("options", [None, {}, {"A": "x"}, {"A": "x", "B": 3}, ["x", "y"]])
def test_a_line_that_is_no_question_is_named(folder, options):
    file = folder / "medbullets" / "test.jsonl"
    file.write_text(json.dumps({"question": "What?", "options": options}))
    with pytest.raises(InputError, match=r"test.jsonl, line 1 is not a MedQA question"):
        read(folder)


def test_a_missing_set_is_named(folder):
    (folder / "medbullets" / "test.jsonl").unlink()
    with pytest.raises(InputError, match="the folder with medbullets/test.jsonl"):
        read(folder)
