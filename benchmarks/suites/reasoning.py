"""AIME 2024: thirty competition problems, reasoned through at length; the answer is an integer.

What is measured is long output, as LongSpec (Yang et al. 2025) does: 4,096 tokens if `--max-tokens`
says nothing else. An answer cut off before its end has no result and counts as wrong.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat

SOURCE = Source(
    suite="reasoning",
    owner="AIME 2024",
    names=("test.jsonl", "aime24.jsonl"),
    row="a problem of AIME (problem, answer)",
)
MAX_TOKENS = 4096


def read(data: Path | None) -> list[Prompt]:
    """The problems in the file's order, each once."""
    problems = dict(SOURCE.lines(data, _problem))
    return [
        Prompt(number, "aime", chat(_question(problem)), gold=Gold("boxed", (answer,)))
        for number, (problem, answer) in enumerate(problems.items(), 1)
    ]


def _problem(row: dict[str, Any]) -> tuple[str, str]:
    return text(row, "problem").strip(), str(int(row["answer"]))


def _question(problem: str) -> str:
    return f"{problem}\n\nReason step by step, and put your final answer within \\boxed{{}}."
