"""HumanEval (Chen et al. 2021): 164 Python functions to complete from signature and docstring.

The prompt is code and the answer repeats it, as an instruct model is asked for the whole function.
pass@1 runs the answers against the set's tests, where `--run-code` allows it.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat

MAX_TOKENS = 512  # the longest solutions, docstring included
SOURCE = Source(
    suite="humaneval",
    owner="HumanEval",
    names=("HumanEval.jsonl",),
    row="a HumanEval task (task_id, prompt)",
)


def read(data: Path | None) -> list[Prompt]:
    """The tasks by their own numbers (HumanEval/7 is 7), each once."""
    tasks: dict[tuple[int, str], Gold | None] = {}
    for number, code, gold in SOURCE.lines(data, _task):
        tasks.setdefault((number, code), gold)
    return [
        Prompt(number, "code", chat(_question(code)), gold=gold)
        for (number, code), gold in tasks.items()
    ]


def _task(row: dict[str, Any]) -> tuple[int, str, Gold | None]:
    code = text(row, "prompt")
    return int(text(row, "task_id").rpartition("/")[2]), code, _gold(row, code)


def _gold(row: dict[str, Any], code: str) -> Gold | None:
    """The whole function, and what a program needs to test another one."""
    if not all(row.get(name) for name in ("canonical_solution", "test", "entry_point")):
        return None
    solution = code + text(row, "canonical_solution")
    return Gold("code", (solution, code, text(row, "test"), text(row, "entry_point")))


def _question(code: str) -> str:
    return (
        "Complete the following Python function. Answer with the whole function, signature and "
        f"docstring included, in one code block.\n\n```python\n{code.strip()}\n```"
    )
