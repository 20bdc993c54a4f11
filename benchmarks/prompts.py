"""Spec-Bench prompts: six categories of 80 questions, first turn only, split in two halves.

Settings are tuned on the even-numbered questions of each category and reported on the odd ones.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple

Split = Literal["tune", "report", "all"]

MT_BENCH = {
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
}  # fmt: skip


class Prompt(NamedTuple):
    """One question; `text` is its first turn."""

    question_id: int
    category: str
    text: str


def read(folder: Path) -> list[Prompt]:
    """All questions of a Spec-Bench folder (the one that holds question.jsonl), in file order."""
    lines = (folder / "question.jsonl").read_text(encoding="utf-8").splitlines()
    return [as_prompt(json.loads(line)) for line in lines if line.strip()]


def as_prompt(row: dict) -> Prompt:
    """The paper's category: the eight MT-bench subjects count as one."""
    category = "mt_bench" if row["category"] in MT_BENCH else row["category"]
    return Prompt(row["question_id"], category, row["turns"][0])


def select(prompts: list[Prompt], limit_per_category: int | None, split: Split) -> list[Prompt]:
    """The chosen half, at most `limit_per_category` per category, spread evenly over the category.

    Categories take turns, so that a run stopped early still holds all of them.
    """
    chosen = []
    for category in dict.fromkeys(prompt.category for prompt in prompts):
        half = [p for p in prompts if p.category == category and in_split(p, split)]
        chosen += enumerate(spread(half, limit_per_category))
    return [prompt for _, prompt in sorted(chosen, key=lambda place: place[0])]


def in_split(prompt: Prompt, split: Split) -> bool:
    """Even question numbers are for tuning, odd ones for reporting."""
    return split == "all" or (prompt.question_id % 2 == 0) == (split == "tune")


def spread(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    """`limit` of them at equal distances: the first ones alone would be one subject of MT-bench."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[i * len(prompts) // limit] for i in range(limit)]
