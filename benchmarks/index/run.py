"""Measure the indexes that a file does not have yet."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.index.measure import ACCEPTED, INDEXES, STEPS, made_up_text, measure, words_of
from benchmarks.settings import Settings, option
from graft.bench.measure import Progress
from graft.bench.result_file import ResultFile, new_header
from graft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class IndexSettings(Settings):
    """Build and look up the indexes of graft.match, by the length of the text."""

    kind: ClassVar[str] = "index"

    sizes: tuple[int, ...] = option((8192, 32768, 131072), "tokens of the text")
    indexes: tuple[str, ...] = option(INDEXES, f"of {', '.join(INDEXES)}")
    text: Path | None = option(None, "a text file, .gz too; made up by default")
    repeats: int = option(5, "builds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [name for name in self.indexes if name not in INDEXES]:
            raise InputError(f"unknown index {unknown[0]!r}; choose from {', '.join(INDEXES)}")
        if not self.sizes or min(self.sizes) < 1:
            raise InputError("--sizes takes whole numbers from 1 on, such as 8k")


SETTINGS = IndexSettings


def run(settings: IndexSettings, file: ResultFile, progress: Progress) -> bool:
    """Every index at every size, small ones first."""
    rows = [
        {"index": name, "tokens": size}
        for size in sorted(settings.sizes)
        for name in settings.indexes
    ]
    left = [row for row in rows if not file.results.has(row)]
    progress.begin(len(rows), len(rows) - len(left))
    if not left:
        return True
    needed = max(settings.sizes) + STEPS * ACCEPTED
    tokens = made_up_text(needed) if settings.text is None else words_of(settings.text)
    if len(tokens) < needed:
        raise InputError(f"{settings.text} has {len(tokens)} words, but --sizes needs {needed}")
    text = "made up" if settings.text is None else settings.text.name
    file.begin(new_header(settings.kind, {"text": text, "repeats": settings.repeats}))
    for row in left:
        progress.show(f"{row['index']}, {row['tokens']:,} tokens")
        file.row(row | measure(row["index"], tokens, row["tokens"], settings.repeats))
        progress.advance()
    return True
