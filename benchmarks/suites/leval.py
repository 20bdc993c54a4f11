"""L-Eval (An et al. 2023): questions and instructions about long documents, in 18 tasks.

A task is a category. A document's instructions fall into one half. Multiple choice is answered with
a short reasoning, as a letter alone measures nothing. gsm100 is arithmetic: its "document" are
worked examples, the same before every question.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text, texts
from benchmarks.suites.task import Gold, Prompt, chat, numbers_by_group

SOURCE = Source(
    suite="leval",
    owner="L-Eval",
    names=("Open-ended-tasks",),
    row="an L-Eval document (input, instructions)",
)
FOLDERS = ("Open-ended-tasks", "Closed-ended-tasks")
ENDINGS = (".jsonl", ".jsonl.gz")
OPTIONS = re.compile(r"^ *\(?A[.)]", re.MULTILINE)  # how the first one begins
LETTERS = re.compile(r"\(?([A-H]+)\b")  # how the right ones are named
NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")
EXAMPLES, STATEMENTS = "gsm100", "sci_fi"
SUMMARIES = {
    "gov_report_summ", "meeting_summ", "news_summ", "paper_assistant", "patent_summ",
    "review_summ", "tv_show_summ",
}  # fmt: skip
Item = tuple[str, str, str]  # task, document, instruction


def read(data: Path | None) -> list[Prompt]:
    """The instructions of every task in the folder, or of one task's file, each once."""
    found: dict[Item, Gold | None] = {}
    for item, gold in _items(data):
        found.setdefault(item, gold)
    numbers = numbers_by_group(map(_group, found))
    return [
        Prompt(number, item[0], chat(_question(*item)), item[1], gold)
        for number, (item, gold) in zip(numbers, found.items(), strict=True)
    ]


def _items(data: Path | None) -> Iterator[tuple[Item, Gold | None]]:
    for file in _files(data):
        task = file.name.partition(".")[0]
        for document, answered, evaluation in SOURCE.lines(file, _document):
            for instruction, output in answered:
                yield (task, document, instruction), _gold(task, instruction, output, evaluation)


def _gold(task: str, instruction: str, output: str, evaluation: str) -> Gold | None:
    """By the rule L-Eval names; of a summary that people or a model should judge, by ROUGE too."""
    output = output.strip()
    if not output:
        return None
    if OPTIONS.search(instruction):
        named = LETTERS.match(output)
        return Gold("letters", (named[1],)) if named else None
    if task == EXAMPLES:
        return Gold("number", (output,)) if NUMBER.fullmatch(output) else None
    if task == STATEMENTS:  # "True [fact: False]": what the story says, then what is so
        return Gold("f1", (output.partition("[")[0].strip(),))
    return Gold("rouge" if evaluation == "rouge" or task in SUMMARIES else "f1", (output,))


def _files(data: Path | None) -> list[Path]:
    """The file itself, or those of L-Eval's folder or of one half of it."""
    found = SOURCE.find(data)
    if data is None or not data.is_dir():
        return [found]
    folders = [data / name for name in FOLDERS if (data / name).is_dir()] or [data]
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return [file for file in files if file.name.endswith(ENDINGS)] or [found]


def _document(row: dict[str, Any]) -> tuple[str, list[tuple[str, str]], str]:
    """A document, its instructions with their answers, and how answers are evaluated."""
    instructions = [each.strip() for each in texts(row, "instructions")]
    outputs = row.get("outputs") or [""] * len(instructions)
    pairs = list(zip(instructions, map(str, outputs), strict=True))
    return text(row, "input").strip(), pairs, str(row.get("evaluation", ""))


def _group(item: Item) -> str:
    """What stands in one half: a document, or a question whose examples all others share."""
    task, document, instruction = item
    return instruction if task == EXAMPLES else document


def _question(task: str, document: str, instruction: str) -> str:
    if task == EXAMPLES:
        return (
            f"Here are questions with worked answers.\n\n{document}\n\nAnswer the next one in the "
            f"same way.\n\n{instruction}"
        )
    return (
        f"Read this document. An instruction about it follows.\n\n{document}\n\nThe document ends "
        f"here. Keep to what it says.\n\n{instruction}{_form(instruction)}"
    )


def _form(instruction: str) -> str:
    """How to answer, where the instruction is a question with options."""
    if not OPTIONS.search(instruction):
        return ""
    return (
        "\n\nSay in a few sentences what speaks for and against the options, then end with the "
        'letter of the right one, or the letters if several are right, as in "Answer: A".'
    )
