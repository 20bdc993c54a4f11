import gzip
import json

import pytest

from benchmarks.suites.leval import read
from graft.errors import InputError


def row(document, *instructions):
    return {"input": document, "instructions": list(instructions), "outputs": [], "source": "s"}


TASKS = {
    "Open-ended-tasks/gov_report_summ.jsonl": [
        row("A report.\n", "Summarize this report."),
        row("A second report.", "Summarize this report."),
        row("A report.\n", "Summarize this report."),
    ],
    "Open-ended-tasks/notes.txt": [],
    "Closed-ended-tasks/quality.jsonl.gz": [
        row("A story.", "Why?\n\n (A) So.\n (B) Thus.", "Who?\n\n (A) He.\n (B) She."),
    ],
    "Closed-ended-tasks/coursera.jsonl": [row("A lecture.", "Question 1. What?\nA. This\nB. That")],
    "Closed-ended-tasks/gsm100.jsonl": [
        row("Question: 1 + 1?\nThe answer is 2\n\n", f"Question: 1 + {n}?\n") for n in (2, 3)
    ],
}


@pytest.fixture
def folder(tmp_path):
    for name, rows in TASKS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return tmp_path


def said(prompt):
    [message] = prompt.content
    return message["content"]


def test_a_task_is_a_category_and_an_instruction_a_prompt(folder):
    prompts = read(folder)
    assert [prompt.category for prompt in prompts] == [
        "gov_report_summ", "gov_report_summ", "coursera", "gsm100", "gsm100", "quality", "quality",
    ]  # fmt: skip
    assert len({prompt.number for prompt in prompts}) == 7
    for prompt in prompts:
        assert f"\n\n{prompt.document}\n\n" in said(prompt)
    assert said(prompts[0]).endswith("\n\nSummarize this report.")


def test_a_document_is_in_one_half_and_shared_examples_are_in_both(folder):
    halves = {}
    for prompt in read(folder):
        halves.setdefault(prompt.category, []).append(prompt.number % 2)
    assert sorted(halves["gsm100"]) == sorted(halves["gov_report_summ"]) == [0, 1]
    assert len(set(halves["quality"])) == 1


def test_multiple_choice_asks_for_a_reason_and_the_letter(folder):
    for prompt in read(folder):
        asks = said(prompt).endswith('as in "Answer: A".')
        assert asks == (prompt.category in ("quality", "coursera"))


def test_examples_are_followed_by_their_like(folder):
    [first, _] = [said(prompt) for prompt in read(folder) if prompt.category == "gsm100"]
    assert first.startswith("Here are questions with worked answers.")
    assert first.endswith("Question: 1 + 2?")


def test_one_file_or_one_half_of_the_folder_is_enough(folder):
    name = "Open-ended-tasks/gov_report_summ.jsonl"
    assert {prompt.category for prompt in read(folder / name)} == {"gov_report_summ"}
    closed = {prompt.category for prompt in read(folder / "Closed-ended-tasks")}
    assert closed == {"coursera", "gsm100", "quality"}


@pytest.mark.parametrize(
    "bad",
    [
        {"input": "x"},
        row("x"),
        row(" ", "Why?"),
        row("x", "Why?", 3),
        {**row("x"), "instructions": "W"},
    ],
)
def test_a_line_that_is_no_document_is_named(folder, bad):
    file = folder / "Open-ended-tasks/gov_report_summ.jsonl"
    file.write_text(file.read_text() + json.dumps(bad))
    with pytest.raises(InputError, match="gov_report_summ.jsonl, line 4 is not an L-Eval document"):
        read(folder)


def test_another_folder_is_an_error_that_explains_data(tmp_path):
    with pytest.raises(InputError, match="cannot be read; --data is the folder with Open-ended"):
        read(tmp_path)
    with pytest.raises(InputError, match="leval needs --data: the folder with L-Eval's Open-ended"):
        read(None)


@pytest.mark.parametrize(
    ("task", "instruction", "output", "kind", "reference"),
    [
        ("quality", "Why?\n (A) So.\n (B) Thus.", "(B) Thus.", "letters", "B"),
        ("coursera", "What?\nA. This\nB. That", "AB", "letters", "AB"),
        ("gsm100", "Question: 1 + 17?", "18", "number", "18"),
        ("sci_fi", "Is it? True or False?", "True [fact: False]", "f1", "True"),
        ("natural_question", "when?", "April 25 , 2018", "f1", "April 25 , 2018"),
        ("gov_report_summ", "Summarize.", "It says.", "rouge", "It says."),
    ],
)
def test_outputs_are_gold_by_the_tasks_own_rule(  # noqa: PLR0913
    tmp_path, task, instruction, output, kind, reference
):
    asked = {**row("Text.", instruction), "outputs": [output], "evaluation": "LLM"}
    (tmp_path / f"{task}.jsonl").write_text(json.dumps(asked) + "\n")
    [prompt] = read(tmp_path / f"{task}.jsonl")
    assert (prompt.gold.kind, prompt.gold.references) == (kind, (reference,))
