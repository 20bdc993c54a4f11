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
Item = tuple[str, tuple[tuple[str, str], ...]]  # question, options


def read(data: Path | None) -> list[Prompt]:
    """The questions of medqa/test.jsonl and medbullets/test.jsonl, each once; or of one file."""
    found: dict[tuple[str, Item], Gold | None] = {}
    for category, item, gold in _questions(data):
        found.setdefault((category, item), gold)
    return [
        Prompt(number, category, chat(_question(*item)), gold=gold)
        for number, ((category, item), gold) in enumerate(found.items(), 1)
    ]


def _questions(data: Path | None) -> Iterator[tuple[str, Item, Gold | None]]:
    """With category and right letter; a file alone is Medbullets' if its folder says so."""
    chosen = list(SOURCES)
    if data is not None and data.is_file():
        chosen = [data.parent.name if data.parent.name in SOURCES else "medqa"]
    for category in chosen:
        for item, gold in SOURCES[category].lines(data, _items):
            yield category, item, gold


def _items(row: dict[str, Any]) -> tuple[Item, Gold | None]:
    options = row["options"]
    if len(options) < 2:
        raise ValueError("options")
    right = row.get("answer_idx")
    gold = Gold("letters", (right,)) if right in options else None
    item = text(row, "question"), tuple((letter, text(options, letter)) for letter in options)
    return item, gold


def _question(question: str, options: tuple[tuple[str, str], ...]) -> str:
    listed = "\n".join(f"{letter}. {option.strip()}" for letter, option in options)
    return (
        f"{question.strip()}\n\n{listed}\n\nThink briefly, in a few sentences, then end with the "
        'letter of the right option, as in "Answer: A".'
    )
