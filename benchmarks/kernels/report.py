"""Kernel measurements as tables and figures."""

from collections.abc import Iterable

from benchmarks.report import Figure, Points, Table
from graft.bench.result_file import Results, Row
from graft.bench.sizes import short
from graft.bench.table import MISSING

MIB = 1 << 20
TITLES = {"attention": "attention of one layer", "step": "a whole step, random weights"}
NOTE = (
    "Median milliseconds. floor: reading one layer's keys and values (of a step: the weights and "
    "all keys and values) once at the speed of a copy, and for attention never less than its "
    "products. error: largest difference from the definition in fp32 over its largest number. "
    "x plain: against a step of one node"
)
ByVariant = dict[str, Row]


def tables(results: Results) -> list[Table]:
    """Attention, whole steps and memory, as far as they are measured."""
    found = [_table(results, part) for part in TITLES if _rows(results, part)]
    return found + [_memory(row) for row in _rows(results, "memory")]


def _rows(results: Results, part: str) -> list[Row]:
    return [row for row in results.rows if row["part"] == part]


def points(rows: Iterable[Row]) -> dict[tuple[int, int], ByVariant]:
    """By context and nodes, ascending, then by variant."""
    found: dict[tuple[int, int], ByVariant] = {}
    for row in sorted(rows, key=lambda row: (row["context"], row["nodes"])):
        found.setdefault((row["context"], row["nodes"]), {})[row["variant"]] = row
    return found


def our_row(by_variant: ByVariant) -> Row | None:
    """What Graft uses at a point, if it was timed."""
    return next((row for row in by_variant.values() if row.get("ours") and "seconds" in row), None)


def _table(results: Results, part: str) -> Table:
    rows = _rows(results, part)
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    found = points(rows)
    lines = []
    for (context, nodes), by_variant in found.items():
        ours, plain = our_row(by_variant), our_row(found.get((context, 1), {}))
        floor = next(iter(by_variant.values())).get("floor_seconds")
        times = [_ms(by_variant.get(name, {}).get("seconds")) for name in variants]
        lines.append([f"{context:,}", str(nodes), _ms(floor), *times, *_compared(ours, plain)])
    columns = ("context", "nodes", "floor", *variants, "/ floor", "x plain", "device", "error")
    return Table(f"{TITLES[part]}, ms", columns, lines, left=0)


def _compared(ours: Row | None, plain: Row | None) -> list[str]:
    if ours is None:
        return [MISSING] * 4
    error = ours.get("max_error", ours.get("error"))
    floor = ours.get("floor_seconds")
    return [
        f"{ours['seconds'] / floor:.2f}" if floor else MISSING,
        f"{ours['seconds'] / plain['seconds']:.2f}" if plain else MISSING,
        _ms(ours.get("device_seconds")),
        MISSING if error is None else f"{error:.1e}",
    ]


def _memory(row: Row) -> Table:
    names = ("weights", "cache", "logits", "rest", "reserved")
    sizes = [row.get(f"{name}_bytes") for name in names]
    cells = [MISSING if size is None else f"{size / MIB:,.0f}" for size in sizes]
    line = [f"{row['context']:,}", str(row["nodes"]), *cells]
    return Table("peak memory of a step, MiB", ("context", "nodes", *names), [line], left=0)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    value = seconds * 1000
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def figures(results: Results) -> list[Figure]:
    """Times of Graft's kernels against nodes, a line per context, with the floor of each."""
    found = []
    for part, title in TITLES.items():
        lines: dict[str, Points] = {}
        for (context, nodes), by_variant in points(_rows(results, part)).items():
            ours = our_row(by_variant)
            if ours:
                name = f"context {short(context)}"
                lines.setdefault(name, []).append((nodes, 1e3 * ours["seconds"]))
                floor = ours.get("floor_seconds", 0)
                lines.setdefault(f"{name}, floor", []).append((nodes, 1e3 * floor))
        if lines:
            found.append(Figure(f"{title}, by nodes", "nodes", "ms", lines))
    return found


def notes(results: Results) -> list[str]:
    """How to read the tables, and why a kernel has no time, each reason once."""
    where: dict[tuple[str, str], list[str]] = {}
    for row in results.rows:
        if isinstance(row.get("error"), str):
            place = f"{row['context']}/{row['nodes']}"
            where.setdefault((row["variant"], row["error"]), []).append(place)
    reasons = [
        f"{name}: {reason} (context/nodes {', '.join(places[:3])}{', ...' if places[3:] else ''})"
        for (name, reason), places in where.items()
    ]
    return [NOTE, *reasons]
