"""Agent loops: sessions of tool calls that refactor a file, replayed by text.

A session is built from a task of Aider's refactoring benchmark by running the tools on its file:
`outline` and `search` list lines, `read` shows some, `replace` changes the file. Their outputs are
real; the calls are those that the task needs, in the form of Hermes and Qwen models. Every turn is
a prompt: the session so far, with the recorded calls, so that all variants get the same prompts,
and the next recorded call as its gold answer. A session is in one half.
"""

import ast
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.suites.code_edit import NAMED, SOURCE
from benchmarks.suites.source import text
from benchmarks.suites.task import Gold, Prompt, numbers_by_group

MAX_TOKENS = 256
MAX_LINES = 40  # that a tool shows
Messages = list[dict[str, str]]
TOOLS = {
    "outline": "all classes and functions of a file: {file}",
    "search": "the lines of a file that contain a text: {file, text}",
    "read": "lines of a file: {file, first, last}",
    "replace": "replace lines of a file: {file, first, last, text}",
}
SYSTEM = "\n".join([
    "You edit Python files with tools. Write one call at a time:",
    '<tool_call>\n{"name": "read", "arguments": {"file": "a.py", "first": 1, "last": 9}}\n'
    "</tool_call>",
    "The tools are:",
    *(f"- {name}: {what}" for name, what in TOOLS.items()),
])  # fmt: skip


def read(data: Path | None) -> list[Prompt]:
    """The turns of every session, in order."""
    sessions = [turns for turns in SOURCE.lines(data, _session) if turns]
    turns = [(i, *turn) for i, session in enumerate(sessions) for turn in session]
    numbers = numbers_by_group(i for i, _, _ in turns)
    return [
        Prompt(number, "agent", messages, gold=Gold("rouge", (call,)))
        for number, (_, messages, call) in zip(numbers, turns, strict=True)
    ]


class File:
    """The tools on one file."""

    def __init__(self, name: str, code: str) -> None:
        self.name, self.lines = name, code.splitlines()

    def outline(self) -> str:
        """Lines that begin a class or function."""
        starts, lines = ("class ", "def ", "async def "), enumerate(self.lines)
        return self._shown(i for i, line in lines if line.strip().startswith(starts))

    def search(self, text: str) -> str:
        """Lines with a text."""
        return self._shown(i for i, line in enumerate(self.lines) if text in line)

    def read(self, first: int, last: int) -> str:
        """Lines from `first` to `last`."""
        return self._shown(range(first - 1, min(last, len(self.lines))))

    def replace(self, first: int, last: int, text: str) -> str:
        """Replace lines; says what was done."""
        self.lines[first - 1 : last] = text.splitlines()
        return f"replaced lines {first} to {last} of {self.name} by {len(text.splitlines())}"

    def _shown(self, numbers: Iterator[int] | range) -> str:
        found = [f"{number + 1:5} {self.lines[number]}" for number in numbers]
        more = [f"... {len(found) - MAX_LINES} more lines"] if len(found) > MAX_LINES else []
        return "\n".join([*found[:MAX_LINES], *more])


def _session(row: dict[str, Any]) -> list[tuple[Messages, str]]:
    """Before each call the messages, and the call; none for a task whose method is not found."""
    named = NAMED.search(text(row, "instruction"))
    if named is None:
        raise ValueError("instruction")
    code, file = text(row, "code"), File(text(row, "file"), text(row, "code"))
    method = _method(code, *named.groups())
    if method is None:
        return []
    first, last = method.lineno, method.end_lineno or method.lineno
    function = textwrap.dedent("\n".join(file.lines[first - 1 : last])).replace("self.", "")
    uses = [
        i + 1 for i, line in enumerate(file.lines) if f"self.{named[1]}(" in line and i + 1 < first
    ]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("outline", {}),
        ("search", {"text": named[1]}),
        ("read", {"first": first, "last": last}),
        *(("read", {"first": use, "last": use}) for use in uses[:2]),
        *(("replace", _edit(file, use, named[1])) for use in uses[:2]),
        ("replace", {"first": first, "last": last, "text": function}),
        ("search", {"text": f"{named[1]}("}),
    ]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"In the file {file.name}: {text(row, 'instruction').strip()}"},
    ]
    turns = []
    for tool, arguments in calls:
        call = {"name": tool, "arguments": {"file": file.name, **arguments}}
        written = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        turns.append((list(messages), written))
        run: Callable[..., str] = getattr(file, tool)
        messages += [
            {"role": "assistant", "content": written},
            {"role": "user", "content": f"<tool_response>\n{run(**arguments)}\n</tool_response>"},
        ]
    return turns


def _edit(file: File, line: int, name: str) -> dict[str, Any]:
    changed = file.lines[line - 1].replace(f"self.{name}(", f"{name}(self, ", 1)
    return {"first": line, "last": line, "text": changed}


def _method(code: str, name: str, owner: str) -> ast.FunctionDef | None:
    for each in ast.walk(ast.parse(code)):
        if isinstance(each, ast.ClassDef) and each.name == owner:
            found = [n for n in each.body if isinstance(n, ast.FunctionDef) and n.name == name]
            return found[0] if found else None
    return None
