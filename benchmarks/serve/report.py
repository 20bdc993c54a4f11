"""A server's figures as a table and panels."""

from typing import Any

from graft.bench.journal import Journal, heading
from graft.bench.panels import Panel, draw_lines, spoken
from graft.bench.tables import NOTHING, markdown_table

COLUMNS = [
    "clients", "requests", "req/s", "tok/s", "first p50", "first p99", "token p50", "token p99",
    "gap p99", "request p50", "faults",
]  # fmt: skip
TITLE = "load: milliseconds as a client sees them"
LEGEND = (
    "Every client sends its next request when it has its answer. first: until the first "
    "piece of text; token: the time after it over the later tokens; gap: between two pieces, "
    "which hold several tokens where drafts were right. faults: answers that failed or differ from "
    "those of one client alone, and requests without sense that were answered."
)


def table(found: Journal) -> list[list[str]]:
    """Cells ready to show, by number of clients."""
    return [_cells(row) for row in sorted(found.rows, key=lambda row: row["concurrency"])]


def _cells(row: dict[str, Any]) -> list[str]:
    faults = row["failed"] + row["different"] + row["wrongly_answered"]
    return [
        str(row["concurrency"]),
        str(row["completed"]),
        f"{row['requests_per_second']:.2f}",
        f"{row['tokens_per_second']:.1f}",
        _share(row["first_token_ms"], "p50"),
        _share(row["first_token_ms"], "p99"),
        _share(row["per_token_ms"], "p50"),
        _share(row["per_token_ms"], "p99"),
        _share(row["between_pieces_ms"], "p99"),
        _share(row["request_ms"], "p50"),
        str(faults),
    ]


def as_markdown(found: Journal) -> str:
    """For a document."""
    shown = markdown_table(TITLE, COLUMNS, table(found))
    failures = [f"- {each}" for row in found.rows for each in row["failures"]]
    return "\n\n".join([f"{heading(found)}.", LEGEND, shown, *failures])


def serve_panels(found: Journal) -> list[Panel]:
    """Throughput and waiting by the number of clients."""
    rows = sorted(found.rows, key=lambda row: row["concurrency"])
    speed = {"tokens/s": [(row["concurrency"], row["tokens_per_second"]) for row in rows]}
    known = [row for row in rows if row["first_token_ms"]]
    waiting = {
        name: [(row["concurrency"], row["first_token_ms"][share]) for row in known]
        for name, share in (("p50", "p50"), ("p99", "p99"))
    }
    return [
        _panel("tokens per second by clients", speed, "tokens/s"),
        *([_panel("time to the first token by clients", waiting, "ms")] if known else []),
    ]


def _panel(title: str, points: dict[str, list[tuple[float, float]]], unit: str) -> Panel:
    def draw(axes: object) -> None:
        draw_lines(axes, points, ("clients at a time", unit))
        axes.set_ylim(bottom=0)

    return Panel(title, f"{title}, in {unit}. {spoken(points)}", draw)


def _share(told: dict[str, float] | None, share: str) -> str:
    return NOTHING if told is None else f"{told[share]:,.1f}"
