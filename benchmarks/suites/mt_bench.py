"""MT-bench (Zheng et al. 2023): both turns of its 80 questions.

The second turn follows the model's own first answer (`python -m benchmarks warm`); commands that
take one prompt at a time measure the first turn alone.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, texts
from benchmarks.suites.spec_bench import MT_BENCH
from benchmarks.suites.task import Prompt, chat

SOURCE = Source(
    suite="mt_bench",
    owner="MT-bench",
    names=("question.jsonl",),
    row="an MT-bench question (question_id, category, turns)",
)


def read(data: Path | None) -> list[Prompt]:
    """The questions in the file's order; of Spec-Bench's file those of MT-bench."""
    return [prompt for prompt in SOURCE.lines(data, _prompt) if prompt.category in MT_BENCH]


def _prompt(row: dict[str, Any]) -> Prompt:
    first, *later = texts(row, "turns")
    number = int(row["question_id"])
    return Prompt(number, str(row["category"]), chat(first), turns=tuple(later))
