"""Figures of indexes as a table and panels."""

from collections import defaultdict

from graft.bench.index.measure import ACCEPTED, LIMIT
from graft.bench.journal import Journal, heading
from graft.bench.panels import Panel, draw_lines, spoken
from graft.bench.sizes import short
from graft.bench.tables import NOTHING, markdown_table

COLUMNS = {
    "index": "", "tokens": "", "build ms": "build_ms", "open ms": "open_ms",
    "append µs": "extend_us", "lookup µs": "lookup_us", "p99 µs": "lookup_p99_us",
    "nodes": "nodes",
}  # fmt: skip
TITLE = f"indexes: append {ACCEPTED} tokens, look up {LIMIT} nodes"
LEGEND = (
    "Medians of a step as decoding makes it, from Python. automaton: all earlier matches; ngram, "
    "copy, counts: those of pld, copy and igpg; store: suffix arrays on disk, asked about a text "
    "that follows theirs."
)


def table(found: Journal) -> list[list[str]]:
    """Cells ready to show."""
    return [
        [row["index"], f"{row['tokens']:,}"]
        + [_number(row.get(name)) for name in COLUMNS.values() if name]
        for row in found.rows
    ]


def as_markdown(found: Journal) -> str:
    """For a document."""
    shown = markdown_table(TITLE, list(COLUMNS), table(found))
    return "\n\n".join([f"{heading(found)}.", LEGEND, shown])


def index_panels(found: Journal) -> list[Panel]:
    """Building and asking by the length of the text."""
    made = []
    for field, title, unit in (
        ("build_ms", "building", "ms"),
        ("lookup_us", "a lookup", "µs"),
    ):
        points: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in sorted(found.rows, key=lambda row: row["tokens"]):
            points[row["index"]].append((row["tokens"], row[field]))

        def draw(axes: object, points: dict = points, unit: str = unit) -> None:
            draw_lines(axes, points, ("tokens", unit))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            sizes = sorted({size for mine in points.values() for size, _ in mine})
            axes.set_xticks(sizes, [short(size) for size in sizes])
            axes.minorticks_off()

        made.append(Panel(f"{title}, by tokens", f"{title} in {unit}. {spoken(points)}", draw))
    return made


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}"
