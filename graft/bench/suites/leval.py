"""L-Eval (An et al. 2023): questions and instructions about long documents, in 18 tasks.

A task is a category. A document's instructions fall into one half. Multiple choice is answered with
a short reasoning, as a letter alone measures nothing. gsm100 is arithmetic: its "document" are
worked examples, the same before every question.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graft.bench.source import Source, text, texts
from graft.bench.task import Prompt, chat, numbers_by_group

SOURCE = Source(
    suite="leval",
    owner="L-Eval",
    names=("Open-ended-tasks",),
    row="an L-Eval document (input, instructions)",
)
FOLDERS = ("Open-ended-tasks", "Closed-ended-tasks")
ENDINGS = (".jsonl", ".jsonl.gz")
OPTIONS = re.compile(r"^ *\(?A[.)]", re.MULTILINE)  # how the first one begins
EXAMPLES = "gsm100"
Asked = tuple[str, str, str]  # task, document, instruction


def read(data: Path | None) -> list[Prompt]:
    """The instructions of every task in the folder, or of one task's file, each once."""
    asked = list(dict.fromkeys(_asked(data)))
    numbers = numbers_by_group(map(_group, asked))
    return [
        Prompt(number, task, chat(_question(task, document, instruction)), document)
        for number, (task, document, instruction) in zip(numbers, asked, strict=True)
    ]


def _asked(data: Path | None) -> Iterator[Asked]:
    for file in _files(data):
        for document, instructions in SOURCE.lines(file, _document):
            for instruction in instructions:
                yield file.name.partition(".")[0], document, instruction


def _files(data: Path | None) -> list[Path]:
    """The file itself, or those of L-Eval's folder or of one half of it."""
    found = SOURCE.find(data)
    if data is None or not data.is_dir():
        return [found]
    folders = [data / name for name in FOLDERS if (data / name).is_dir()] or [data]
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return [file for file in files if file.name.endswith(ENDINGS)] or [found]


def _document(row: dict[str, Any]) -> tuple[str, list[str]]:
    return text(row, "input").strip(), [each.strip() for each in texts(row, "instructions")]


def _group(asked: Asked) -> str:
    """What stands in one half: a document, or a question whose examples all others share."""
    task, document, instruction = asked
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
