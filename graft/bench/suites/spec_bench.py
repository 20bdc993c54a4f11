"""Spec-Bench (Xia et al. 2024): six categories of 80 questions, first turn only.

The eight subjects of MT-bench count as one category, as in the paper.
"""

import json
from pathlib import Path
from typing import Any

from graft.bench.task import Prompt
from graft.errors import InputError

FILE = "question.jsonl"
MT_BENCH = {
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
}  # fmt: skip


def read(data: Path | None) -> list[Prompt]:
    """The questions of a folder that holds question.jsonl, or of that file, in its order."""
    if data is None:
        raise InputError(f"spec_bench needs --data: the folder with Spec-Bench's {FILE}")
    file = data / FILE if data.is_dir() else data
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read; --data is the folder with {FILE}") from error
    prompts = [
        _prompt(line, f"{file}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise InputError(f"{file} is empty; download Spec-Bench's {FILE} again")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        row: dict[str, Any] = json.loads(line)
        category = "mt_bench" if row["category"] in MT_BENCH else str(row["category"])
        messages = [{"role": "user", "content": str(row["turns"][0])}]
        return Prompt(int(row["question_id"]), category, messages)
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError(
            f"{where} is not a Spec-Bench question (question_id, category, turns)"
        ) from None
