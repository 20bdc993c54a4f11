"""A report over questions as tables: quality and rounds, then time."""

from typing import TYPE_CHECKING

from graft.bench.rag.report import RagReport, Row, Speedup

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 140  # where there is no terminal
NOTHING = "–"
QUALITY = ("set", "policy", "way", "n", "EM", "F1", "acc", "F1 change", "rounds", "overlap", "same")
TIME = (
    "set", "policy", "way", "search", "prefill", "decode", "judging", "total", "tok/step",
    "reused", "~reused", "hits", "cache MB", "prefill x", "decode x", "total x",
)  # fmt: skip


def heading(told: RagReport) -> str:
    """Model, machine, versions, date: one paragraph."""
    session, fixed = told.session, told.session["fixed"]
    where = ", ".join(session["hardware"]["gpus"]) or session["hardware"]["cpu"]
    versions = ", ".join(f"{name} {number}" for name, number in session["versions"].items())
    commit = f" ({session['commit']})" if session.get("commit") else ""
    return (
        f"rag: {fixed['model']}, {fixed['dtype']}, greedy; {where}, {fixed['threads']} threads; "
        f"{versions}{commit}; {session['date'][:10]}"
    )


def legend(told: RagReport) -> str:
    """How to read the columns."""
    return (
        f"Seconds per question (demonstrations apart). x: speed-up over {told.baseline}, ratio of "
        "means / mean of ratios. rounds: searches per question; overlap: of their passages, those "
        "found before. reused: of all prompt tokens, those known exactly; ~reused: nearly; hits: "
        "of all passages in prompts, those the document cache knew. F1 change: against the "
        "baseline, paired, with its 95 % interval. same: answers with the baseline's tokens, where "
        "the prompts are the same."
    )


def quality(row: Row) -> list[str]:
    """A row of the first table."""
    change = row.f1_change
    shown = NOTHING if change is None else f"{100 * change.mean:+.1f}"
    if change is not None and change.low is not None:
        shown += f" ({100 * change.low:+.1f}, {100 * change.high:+.1f})"
    return [
        *(row.set, row.policy, _way(row), str(row.questions)),
        *(_percent(row.exact), _percent(row.f1), _percent(row.accuracy), shown),
        *(f"{row.retrievals:.2f}", _percent(row.overlap)),
        NOTHING if row.compared is None else f"{row.same}/{row.compared}",
    ]


def time(row: Row) -> list[str]:
    """A row of the second."""
    parts = ("retrieval", "prefill", "decode", "judging", "total")
    step = NOTHING if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}"
    return [
        *(row.set, row.policy, _way(row)),
        *(f"{row.seconds[part]:.2f}" for part in parts),
        *(step, _percent(row.reused), _percent(row.nearly), _percent(row.hit_rate)),
        NOTHING if row.hit_rate is None else f"{row.cache_bytes / 1e6:.0f}",
        *(_ratio(row.speedups[part]) for part in ("prefill", "decode", "total")),
    ]


def _way(row: Row) -> str:
    return f"{row.way} ~" if row.approximate else row.way


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"


def _ratio(speedup: Speedup | None) -> str:
    if speedup is None:
        return NOTHING
    return f"{speedup.ratio_of_means:.2f} / {speedup.mean_of_ratios:.2f}"


def as_tables(told: RagReport) -> "list[Table]":
    """For a terminal."""
    from rich.table import Table

    tables = []
    for columns, cells in ((QUALITY, quality), (TIME, time)):
        table = Table(box=None, padding=(0, 1, 0, 0))
        for column in columns:
            left = column in ("set", "policy", "way")
            table.add_column(column, justify="left" if left else "right", no_wrap=left)
        for row in told.rows:
            table.add_row(*cells(row))
        tables.append(table)
    return tables


def as_markdown(told: RagReport) -> str:
    """For a document."""
    blocks = [heading(told)]
    for columns, cells in ((QUALITY, quality), (TIME, time)):
        lines = [columns, ["---"] * 3 + ["--:"] * (len(columns) - 3), *map(cells, told.rows)]
        blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*blocks, *(f"Note: {note}." for note in told.notes), legend(told)])
