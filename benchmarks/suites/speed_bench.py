"""SPEED-Bench (Abramovich et al. 2026), as a user has prepared it: its licence forbids shipping.

    python prepare_data.py --config qualitative --output_dir DATA    # NVIDIA/Model-Optimizer

`--data` is DATA/speed, with all configurations that are there, or one of its folders: parquet files
with question_id, category and turns.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.task import Prompt, chat
from graft.errors import InputError

COLUMNS = ["question_id", "category", "turns"]


def read(data: Path | None) -> list[Prompt]:
    """The questions of all files; with several configurations a category names its own."""
    if data is None:
        raise InputError("speed_bench needs --data: the folder `speed` that prepare_data.py wrote")
    files = sorted(data.rglob("*.parquet")) if data.is_dir() else [data]
    if not files:
        raise InputError(
            f"{data} has no parquet files; prepare SPEED-Bench with NVIDIA's prepare_data.py"
        )
    several = len({file.parent for file in files}) > 1
    rows = [
        (f"{file.parent.name}/{row['category']}" if several else str(row["category"]), row)
        for file in files
        for row in _rows(file)
    ]
    return [_prompt(number, *row) for number, row in enumerate(rows, 1)]


def _rows(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(file, columns=COLUMNS).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{file} is not a file of SPEED-Bench ({reason})") from None


def _prompt(number: int, category: str, row: dict[str, Any]) -> Prompt:
    turns = row["turns"]
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise InputError(
            f"question {row['question_id']} of SPEED-Bench has no text; prepare_data.py adds it"
        )
    return Prompt(number, category, chat(turns[0]), turns=tuple(turns[1:]))
