"""MedQA-USMLE (Jin et al. 2021), test questions, and Medbullets (Chen et al. 2024): medical
multiple choice, answered with a short reasoning."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat

ROW = "a MedQA question (question, options by letter)"
SOURCES = {
    "medqa": Source("medqa", "MedQA", ("medqa/test.jsonl",), ROW),
    "medbullets": Source("medqa", "Medbullets", ("medbullets/test.jsonl",), ROW),
}
Asked = tuple[str, tuple[tuple[str, str], ...]]  # question, options


def read(data: Path | None) -> list[Prompt]:
    """The questions of medqa/test.jsonl and medbullets/test.jsonl, each once; or of one file."""
    found: dict[tuple[str, Asked], Gold | None] = {}
    for category, asked, gold in _questions(data):
        found.setdefault((category, asked), gold)
    return [
        Prompt(number, category, chat(_question(*asked)), gold=gold)
        for number, ((category, asked), gold) in enumerate(found.items(), 1)
    ]


def _questions(data: Path | None) -> Iterator[tuple[str, Asked, Gold | None]]:
    """With category and right letter; a file alone is Medbullets' if its folder says so."""
    chosen = list(SOURCES)
    if data is not None and data.is_file():
        chosen = [data.parent.name if data.parent.name in SOURCES else "medqa"]
    for category in chosen:
        for asked, gold in SOURCES[category].lines(data, _asked):
            yield category, asked, gold


def _asked(row: dict[str, Any]) -> tuple[Asked, Gold | None]:
    options = row["options"]
    if len(options) < 2:
        raise ValueError("options")
    right = row.get("answer_idx")
    gold = Gold("letters", (right,)) if right in options else None
    asked = text(row, "question"), tuple((letter, text(options, letter)) for letter in options)
    return asked, gold


def _question(question: str, options: tuple[tuple[str, str], ...]) -> str:
    listed = "\n".join(f"{letter}. {option.strip()}" for letter, option in options)
    return (
        f"{question.strip()}\n\n{listed}\n\nThink briefly, in a few sentences, then end with the "
        'letter of the right option, as in "Answer: A".'
    )
