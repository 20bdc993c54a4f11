"""Code edits: Aider's refactoring benchmark, whole files rewritten as an instruction says.

A task moves a method out of its class; the answer is the whole file, most of it copied. The file is
the prompt's document, so `--contexts` cuts it; around the class it is cut here: a file longer than
`MAX_CHARACTERS` keeps the lines of the class that the instruction names.
"""

import ast
import re
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Prompt, chat, numbers_by_group

SOURCE = Source(
    suite="code_edit",
    owner="Aider's refactor-benchmark",
    names=("tasks.jsonl",),
    row="a refactoring task (id, instruction, code, file)",
)
MAX_TOKENS = 2048
MAX_CHARACTERS = 24_000  # about 6,000 tokens
NAMED = re.compile(r"`(\w+)` method in the `(\w+)` class")


def read(data: Path | None) -> list[Prompt]:
    """One prompt a task; tasks of the same file are in the same half."""
    tasks = SOURCE.lines(data, task)
    numbers = numbers_by_group(name for name, _, _ in tasks)
    return [
        Prompt(number, "refactor", chat(_question(instruction, code)), document=code)
        for number, (_, instruction, code) in zip(numbers, tasks, strict=True)
    ]


def task(row: dict[str, Any]) -> tuple[str, str, str]:
    """File name, instruction and code; a long file is cut around the class."""
    instruction, code = text(row, "instruction").strip(), text(row, "code")
    if len(code) > MAX_CHARACTERS:
        code = around_class(code, NAMED.search(instruction)[2])  # type: ignore[index]
    return text(row, "file"), instruction, code


def around_class(code: str, name: str) -> str:
    """The imports before the first definition and the class, whole or its first characters."""
    nodes = ast.parse(code).body
    lines = code.splitlines(keepends=True)
    [found] = [each for each in nodes if isinstance(each, ast.ClassDef) and each.name == name]
    head = [each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom)]
    parts = [lines[each.lineno - 1 : each.end_lineno] for each in (*head, found)]
    return "".join(line for part in parts for line in part)[:MAX_CHARACTERS]


def _question(instruction: str, code: str) -> str:
    return (
        f"{instruction}\n\nHere is the file:\n\n```python\n{code}\n```\n\n"
        "Write the whole changed file in one code block, nothing else."
    )
