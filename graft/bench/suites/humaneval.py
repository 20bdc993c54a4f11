"""HumanEval (Chen et al. 2021): 164 Python functions to complete from signature and docstring.

The prompt is code and the answer repeats it, as an instruct model is asked for the whole function.
"""

from pathlib import Path
from typing import Any

from graft.bench.source import Source, text
from graft.bench.task import Prompt, chat

SOURCE = Source(
    suite="humaneval",
    owner="HumanEval",
    names=("HumanEval.jsonl",),
    row="a HumanEval task (task_id, prompt)",
)


def read(data: Path | None) -> list[Prompt]:
    """The tasks by their own numbers (HumanEval/7 is 7), each once."""
    tasks = dict.fromkeys(SOURCE.lines(data, _task))
    return [Prompt(number, "code", chat(_question(code))) for number, code in tasks]


def _task(row: dict[str, Any]) -> tuple[int, str]:
    return int(text(row, "task_id").rpartition("/")[2]), text(row, "prompt")


def _question(code: str) -> str:
    return (
        "Complete the following Python function. Answer with the whole function, signature and "
        f"docstring included, in one code block.\n\n```python\n{code.strip()}\n```"
    )
