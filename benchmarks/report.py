"""The report of any result file: a heading, tables, figures and notes.

A kind has a module with `tables`, `figures` and `notes` of results; other files are shown row by
row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from graft.bench.result_file import Results, Row, read_results
from graft.bench.table import MISSING, Table, heading

# Fields of the rows that the report of a kind needs
REPORTS = {
    "decode": ("prompts", "variant", "first_tokens", "total_seconds"),
    "kernels": ("part", "variant", "context", "nodes"),
    "rag": ("set", "question", "policy", "variant"),
    "serve": ("concurrency", "wrongly_answered"),
    "index": ("index", "tokens", "lookup_us"),
}
MAX_ROWS = 60  # of a file that has no report of its own
Points = list[tuple[float | str, float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Lines over a numeric x axis, or bars where x is text."""

    title: str
    x: str
    y: str
    lines: dict[str, Points]
    log_x: bool = False
    log_y: bool = False

    @property
    def bars(self) -> bool:
        """Whether x is text."""
        return any(isinstance(x, str) for points in self.lines.values() for x, _ in points)

    def in_words(self) -> str:
        """The first and last point of every line; the tables have the rest."""
        parts = []
        for label, points in self.lines.items():
            ends = points if self.bars else dict.fromkeys((points[0], points[-1]))
            shown = (f"{y:.3g} at {x if isinstance(x, str) else f'{x:.3g}'}" for x, y in ends)
            parts.append(f"{label}: {', '.join(shown)}")
        return f"{self.y} by {self.x}. {'; '.join(parts)}."


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one file."""

    title: str
    heading: str
    tables: Sequence[Table]
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = field(default_factory=list)

    def as_markdown(self) -> str:
        """For a document."""
        parts = [f"{self.heading}.", *(table.as_markdown() for table in self.tables)]
        return "\n\n".join([*parts, *(f"- {note}" for note in self.notes)])


def report(path: Path) -> Report:
    """The report of a file."""
    return report_of(read_results(path), path.stem)


def report_of(results: Results, name: str = "") -> Report:
    """The report of results that are in memory."""
    settings = results.header.settings
    parts = [results.kind, settings.get("suite"), settings.get("model"), settings.get("dtype")]
    title = ": ".join(filter(None, [name, ", ".join(str(part) for part in parts if part)]))
    needed = REPORTS.get(results.kind)
    if not needed or not results.measured or not set(needed) <= set(results.measured[0]):
        return Report(title, heading(results), [_generic(results)], notes=results.header.notes)
    kind = import_module(f"benchmarks.{results.kind}.report")
    return Report(
        title,
        heading(results),
        kind.tables(results),
        kind.figures(results),
        kind.notes(results),
    )


def _generic(results: Results) -> Table:
    """Every scalar of every row, of long files the first rows."""
    rows = results.rows[:MAX_ROWS]
    names = list(
        dict.fromkeys(
            name
            for row in rows
            for name, value in row.items()
            if name != "session" and isinstance(value, str | int | float)
        )
    )
    left = sum(any(isinstance(row.get(name), str) for row in rows) for name in names)
    names.sort(key=lambda name: not any(isinstance(row.get(name), str) for row in rows))
    title = results.kind if len(rows) == len(results.rows) else f"{results.kind}, first rows"
    return Table(title, names, [[_shown(row, name) for name in names] for row in rows], left)


def _shown(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return MISSING
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
