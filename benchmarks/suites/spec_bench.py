"""Spec-Bench (Xia et al. 2024): six categories of 80 questions, first turn only.

The eight subjects of MT-bench count as one category, as in the paper.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source
from benchmarks.suites.task import Prompt, chat

SOURCE = Source(
    suite="spec_bench",
    owner="Spec-Bench",
    names=("question.jsonl",),
    row="a Spec-Bench question (question_id, category, turns)",
)
MT_BENCH = {
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
}  # fmt: skip


def read(data: Path | None) -> list[Prompt]:
    """The questions of a folder that holds question.jsonl, or of that file, in its order."""
    return SOURCE.lines(data, _prompt)


def _prompt(row: dict[str, Any]) -> Prompt:
    category = "mt_bench" if row["category"] in MT_BENCH else str(row["category"])
    return Prompt(int(row["question_id"]), category, chat(str(row["turns"][0])))
