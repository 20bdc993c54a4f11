"""Server load as a table and figures."""

from benchmarks.report import Figure, Table
from graft.bench.result_file import Results, Row
from graft.bench.table import MISSING, number

COLUMNS = (
    "clients", "requests", "req/s", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99",
    "gap p99", "request p50", "faults",
)  # fmt: skip
NOTE = (
    "Every client sends its next request when it has its answer. TTFT: time to the first token; "
    "TPOT: the time after it over the later tokens; gap: between two events, which hold several "
    "tokens where drafts are accepted. faults: requests that failed or gave another output than "
    "for one client alone, and invalid requests that were answered"
)


def tables(results: Results) -> list[Table]:
    """One line per number of clients."""
    rows = [_cells(row) for row in _ordered(results)]
    return [Table("load: milliseconds as a client measures them", COLUMNS, rows, left=0)]


def _ordered(results: Results) -> list[Row]:
    return sorted(results.rows, key=lambda row: row["concurrency"])


def _cells(row: Row) -> list[str]:
    faults = row["failed"] + row["different"] + row["wrongly_answered"]
    return [
        str(row["concurrency"]),
        str(row["completed"]),
        number(row["requests_per_second"], 2),
        number(row["tokens_per_second"], 1),
        _share(row, "first_token_ms", "p50"),
        _share(row, "first_token_ms", "p99"),
        _share(row, "per_token_ms", "p50"),
        _share(row, "per_token_ms", "p99"),
        _share(row, "between_pieces_ms", "p99"),
        _share(row, "request_ms", "p50"),
        str(faults),
    ]


def _share(row: Row, name: str, share: str) -> str:
    return MISSING if row.get(name) is None else number(row[name][share], 1)


def figures(results: Results) -> list[Figure]:
    """Throughput and time to the first token by the number of clients."""
    rows = _ordered(results)
    speed = {"tokens/s": [(row["concurrency"], row["tokens_per_second"]) for row in rows]}
    known = [row for row in rows if row.get("first_token_ms")]
    waiting = {
        share: [(row["concurrency"], row["first_token_ms"][share]) for row in known]
        for share in ("p50", "p99")
    }
    found = [Figure("throughput by clients", "clients", "tokens/s", speed)]
    found += [Figure("TTFT by clients", "clients", "ms", waiting)] if known else []
    return found


def notes(results: Results) -> list[str]:
    """How to read the table, and the failures."""
    return [NOTE, *(each for row in results.rows for each in row["failures"])]
