"""Index measurements as a table and figures."""

from collections import defaultdict

from benchmarks.index.measure import ACCEPTED, LIMIT
from benchmarks.report import Figure, Points, Table
from graft.bench.result_file import Results
from graft.bench.table import number

COLUMNS = {
    "build ms": "build_ms", "open ms": "open_ms", "append µs": "extend_us",
    "lookup µs": "lookup_us", "p99 µs": "lookup_p99_us", "nodes": "nodes", "answer µs": "add_us",
    "answer p99 µs": "add_p99_us", "MB": "megabytes",
}  # fmt: skip
NOTE = (
    "Medians of a decoding step, called from Python. automaton: all earlier matches; ngram, copy, "
    "counts: those of pld, copy and igpg; store: suffix arrays on disk, queried with another "
    "text; pool: full, with a folder, answers of 500 tokens are added"
)


def tables(results: Results) -> list[Table]:
    """One line per index and size."""
    rows = [
        [row["index"], f"{row['tokens']:,}"]
        + [number(row.get(name), 1) for name in COLUMNS.values()]
        for row in results.rows
    ]
    title = f"indexes: append {ACCEPTED} tokens, look up {LIMIT} nodes"
    return [Table(title, ("index", "tokens", *COLUMNS), rows)]


def figures(results: Results) -> list[Figure]:
    """Building and looking up by the length of the text."""
    found = []
    for name, title, unit in (("build_ms", "build", "ms"), ("lookup_us", "lookup", "µs")):
        lines: dict[str, Points] = defaultdict(list)
        for row in sorted(results.rows, key=lambda row: row["tokens"]):
            lines[row["index"]].append((row["tokens"], row[name]))
        found.append(Figure(title, "tokens", unit, lines, log_x=True, log_y=True))
    return found


def notes(results: Results) -> list[str]:
    """How to read the table."""
    return [NOTE]
