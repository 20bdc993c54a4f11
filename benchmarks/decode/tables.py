"""A report as tables, for a terminal or a document."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from graft.bench.metrics import Drafting, Ratio
from graft.bench.quality.bootstrap import Estimate
from graft.bench.quality.report import Quality
from graft.bench.report import PLAIN, Report, Row
from graft.bench.sizes import short
from graft.bench.systems import PEERS

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 100  # where there is no terminal
NOTHING = "–"
DRAFTING = {
    "category": 15,
    "system": 11,
    "tok/step": 8,
    "nodes/step": 10,
    "accepted": 8,
    "by source": 43,
}  # headings of `drafting_figures` and their widths: 100 with gaps of one
SETTINGS = ["system", "versions", "settings"]
QUALITY = {
    "category": 15,
    "system": 13,
    "measure": 11,
    "items": 5,
    "score": 20,
    "difference": 22,
    "detectable": 10,
}
LEFT = (
    "category", "system", "measure", "draft model", "output", "guessed by", "by source", "index",
    "versions", "settings",
)  # fmt: skip


def heading(told: Report) -> str:
    """Model, machine, versions, date: one paragraph."""
    session, fixed = told.session, told.session["fixed"]
    where = ", ".join(session["hardware"]["gpus"]) or session["hardware"]["cpu"]
    versions = ", ".join(f"{name} {number}" for name, number in _versions(told).items())
    commit = f" ({session['commit']})" if session.get("commit") else ""
    asked = fixed.get("context length")
    length = f" of {short(asked)} tokens" if isinstance(asked, int) else ""
    return (
        f"{fixed['suite']}: {fixed['model']}{length}, {fixed['dtype']}, at most "
        f"{fixed['max_tokens']} tokens; {where}, {fixed['threads']} threads; {versions}{commit}; "
        f"{session['date'][:10]}"
    )


def _versions(told: Report) -> dict[str, str]:
    """Of Graft's environment, then of the peers' engines."""
    ours = told.session["versions"]
    theirs = [told.workers[name]["versions"] for name in told.workers if name in PEERS]
    return ours | {k: v for each in theirs for k, v in each.items() if k not in ours}


def legend(told: Report) -> str:
    """How to read the columns."""
    drafting = " drafting: nodes put before the model per step, and the share it agreed with."
    quality = (
        " quality: means and paired differences to the baseline with 95 % bootstrap intervals; "
        "detectable: the true difference that so many items would show four times in five."
    )
    return (
        f"Ratios: time of {told.baseline} over time of the system, paired by prompt, geometric "
        "mean (95 % t interval); above 1 is faster. same: answers equal to the reference's, "
        "@ the median token at which others part. all: tokens/s with the prompts' time."
        f"{drafting if any(map(drafters, cells_of(told).values())) else ''}"
        f"{quality if told.quality else ''}"
    )


def cells_of(told: Report) -> dict[str, list[Row]]:
    """Rows by cell, under the cell's title."""
    cells: dict[str, list[Row]] = defaultdict(list)
    for row in told.rows:
        context = f", context {short(row.context)}" if row.context else ""
        cells[f"{_way(row)}{context}"].append(row)
    return cells


def _way(row: Row | Quality) -> str:
    """How a cell's answers were drawn."""
    draws = "greedy" if row.temperature == 0 else f"temperature {row.temperature:g}"
    return f"{draws}, {row.batch} at a time" if row.batch > 1 else draws


def contexts_of(told: Report) -> list[int]:
    """Those that prompts were cut to, if there are several."""
    found = sorted({row.context for row in told.rows if row.context})
    return found if len(found) > 1 else []


def by_context(told: Report) -> dict[str, list[list[str]]]:
    """Tokens per step at every context and of how many prompts, ready to show, by title."""
    contexts = contexts_of(told)
    tables: dict[str, dict[tuple[str, str], dict[int, str]]] = {}
    for row in told.rows:
        if row.context in contexts:
            lines = tables.setdefault(f"{_way(row)}: tokens per step by context", {})
            lines.setdefault((row.category, "prompts"), {})[row.context] = str(row.prompts)
            shown = shown_number(row.tokens_per_step, 2)
            lines.setdefault((row.category, row.system), {})[row.context] = shown
    return {
        title: [[*names, *(shown.get(c, NOTHING) for c in contexts)] for names, shown in lines]
        for title, lines in ((title, found.items()) for title, found in tables.items())
    }


def quality_by_context(told: Report) -> dict[str, list[list[str]]]:
    """Every measure at every context, such as a grid of depths by lengths, by title."""
    contexts = contexts_of(told)
    tables: dict[str, dict[tuple[str, str], dict[int, str]]] = {}
    for row in told.quality:
        if row.context in contexts:
            lines = tables.setdefault(f"{_way(row)}: {row.measure} by context", {})
            mine = lines.setdefault((row.category, row.system), {})
            mine[row.context] = f"{row.value.mean:.3f}"
    return {
        title: [[*names, *(mine.get(c, NOTHING) for c in contexts)] for names, mine in lines]
        for title, lines in ((title, found.items()) for title, found in tables.items())
    }


def context_columns(told: Report) -> dict[str, int]:
    """Headings of `by_context` and their widths."""
    return {"category": 24, "system": 11, **{short(context): 7 for context in contexts_of(told)}}


def columns(*, batched: bool) -> dict[str, int]:
    """Headings of `figures` and their widths: 100 with the system's name and gaps of one."""
    speed = {"tok/s": 6, "all": 6} if batched else {"tok/s": 6}
    guessed = 13 if batched else 20
    ratios = {"decoding": 16, "prefill": 7, "end to end": 16}
    return {**speed, **ratios, "tok/step": 8, "guessed by": guessed, "same": 9}


def figures(row: Row) -> list[str]:
    """A row's cells, ready to show; speeds with prompts included only for batches."""
    speeds = [shown_number(row.tokens_per_second, 1)]
    if row.batch > 1:
        speeds.append(shown_number(row.total_tokens_per_second, 1))
    by = " ".join(f"{source} {share:.0%}" for source, share in row.shares.items() if share > 0.005)
    same = NOTHING if row.compared is None else f"{row.same}/{row.compared}"
    return [
        *speeds,
        shown_ratio(row.decode),
        shown_number(row.prefill.mean if row.prefill else None, 2),
        shown_ratio(row.total),
        shown_number(row.tokens_per_step, 2),
        by or NOTHING,
        same if row.parted_at is None else f"{same} @{row.parted_at:.0f}",
    ]


def drafters(rows: list[Row]) -> list[Row]:
    """Of a cell, the rows of systems that draft and tell how much."""
    return [row for row in rows if row.drafting and row.system != PLAIN]


def drafting_figures(row: Row) -> list[str]:
    """What its nodes cost and gained, ready to show."""
    told: Drafting = row.drafting
    by = ", ".join(
        f"{source} {guesses.share:.0%} of {guesses.drafted}"
        for source, guesses in told.by_source.items()
        if guesses.drafted
    )
    steps = [shown_number(row.tokens_per_step, 2), shown_number(told.nodes_per_step, 2)]
    share = NOTHING if told.all.share is None else f"{told.all.share:.0%}"
    return [row.category, row.system, *steps, share, by or NOTHING]


def quality_by_cell(told: Report) -> dict[str, list[list[str]]]:
    """How good answers are, ready to show, under the cell's title."""
    tables: dict[str, list[list[str]]] = defaultdict(list)
    for row in told.quality:
        context = f", context {short(row.context)}" if row.context else ""
        items = [row.category, row.system, row.measure, str(row.value.items)]
        change = NOTHING if row.difference is None else shown_estimate(row.difference, sign="+")
        shown = [shown_estimate(row.value), change, shown_number(row.detectable, 3)]
        tables[f"{_way(row)}{context}: quality"].append([*items, *shown])
    return tables


def shown_estimate(value: Estimate, sign: str = "") -> str:
    """A mean and its interval."""
    mean = f"{value.mean:{sign}.3f}"
    if value.low is None or value.low == value.high:
        return mean
    return f"{mean} ({value.low:{sign}.3f}, {value.high:{sign}.3f})"


def shown_number(value: float | None, places: int) -> str:
    """So many places, where there is something to show."""
    return NOTHING if value is None else f"{value:.{places}f}"


def shown_ratio(ratio: Ratio | None) -> str:
    """A ratio and its interval."""
    if ratio is None:
        return NOTHING
    if ratio.low is None or ratio.low == ratio.high:
        return f"{ratio.mean:.2f}"
    high = f"{ratio.high:.2f}" if ratio.high < 10 else f"{ratio.high:.3g}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f}–{high})"


def as_tables(told: Report) -> "list[Table]":
    """For a terminal of 100 columns: one table per category of a cell, one for its drafting;
    in the end one for all contexts."""
    tables = []
    for title, rows in cells_of(told).items():
        for category, group in groupby(rows, key=lambda row: row.category):
            tables.append(_table(f"{title}: {category}", list(group)))
        if drafting := drafters(rows):
            cells = map(drafting_figures, drafting)
            tables.append(_plain_table(f"{title}: drafting", DRAFTING, cells))
    for title, cells in (by_context(told) | quality_by_context(told)).items():
        tables.append(_plain_table(title, context_columns(told), cells))
    for title, cells in quality_by_cell(told).items():
        tables.append(_plain_table(title, QUALITY, cells))
    return tables


def bare_table(title: str) -> "Table":
    """Without lines, its title above it on the left."""
    from rich.table import Table

    return Table(
        title=title,
        title_style="bold",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="dim",
    )


def _table(title: str, rows: list[Row]) -> "Table":
    prompts = f"{rows[0].prompts} prompt{'s' if rows[0].prompts > 1 else ''}"
    table = bare_table(f"{title}, {prompts}")
    table.add_column("", width=11, overflow="fold")
    for name, width in columns(batched=rows[0].batch > 1).items():
        _add_column(table, name, width)
    for row in rows:
        table.add_row(row.system, *figures(row))
    return table


def _plain_table(title: str, columns: dict[str, int], rows: Iterable[list[str]]) -> "Table":
    table = bare_table(title)
    for name, width in columns.items():
        _add_column(table, name, width)
    for cells in rows:
        table.add_row(*cells)
    return table


def _add_column(table: "Table", name: str, width: int) -> None:
    justify = "left" if name in LEFT else "right"
    table.add_column(name, width=width, justify=justify, overflow="fold")


def as_markdown(told: Report) -> str:
    """The same for a document."""
    parts = [f"{heading(told)}.", legend(told)]
    for title, rows in cells_of(told).items():
        names = ["category", "prompts", "system", *columns(batched=rows[0].batch > 1)]
        cells = [[row.category, str(row.prompts), row.system, *figures(row)] for row in rows]
        parts.append(markdown_table(title, names, cells))
        if drafting := drafters(rows):
            cells = [drafting_figures(row) for row in drafting]
            parts.append(markdown_table(f"{title}: drafting", list(DRAFTING), cells))
    for title, cells in (by_context(told) | quality_by_context(told)).items():
        parts.append(markdown_table(title, list(context_columns(told)), cells))
    for title, cells in quality_by_cell(told).items():
        parts.append(markdown_table(title, list(QUALITY), cells))
    if any(row.system in PEERS for row in told.rows):
        parts.append(markdown_table("settings", SETTINGS, settings_rows(told)))
    parts += [f"- {note}" for note in told.notes]
    return "\n\n".join(parts)


def settings_rows(told: Report) -> list[list[str]]:
    """What every system ran with, so that a reader can judge whether that was fair."""
    return [
        [name, _listed(worker["versions"]), _listed(worker["settings"])]
        for name, worker in told.workers.items()
    ]


def _listed(values: dict[str, object]) -> str:
    known = {name: value for name, value in values.items() if value not in (None, {}, [])}
    return ", ".join(f"{name} {value}" for name, value in known.items()) or NOTHING


def markdown_table(title: str, names: list[str], rows: list[list[str]]) -> str:
    """A table for a document, its title above it."""
    aligned = ["---" if name in LEFT else "--:" for name in names]
    return "\n".join([f"**{title}**", "", *map(_markdown_row, [names, aligned, *rows])])


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
