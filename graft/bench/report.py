"""Tables from result files: a row per system, category by category, cell by cell."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from graft.bench.metrics import (
    Ratio,
    Run,
    as_run,
    decode_ratio,
    decode_speed,
    first_difference,
    prefill_ratio,
    shares,
    tokens_per_step,
    total_ratio,
    total_speed,
)
from graft.bench.records import Answer, Results
from graft.bench.systems import PEERS
from graft.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

ALL = "all"
PLAIN = "plain"
NOTHING = "–"
Runs = dict[tuple[int, ...], Run]  # by the numbers of the prompts
Cell = tuple[int, float]  # batch, temperature


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one category of one cell, over the prompts it shares with the baseline.

    `same` of `compared` answers equal the reference's; None where nothing can be said, as when
    two engines draw with different noise. `parted_at` is the median place of the others.
    `out_of_turn` pairs were measured in different sessions.
    """

    batch: int
    temperature: float
    category: str
    system: str
    prompts: int
    tokens_per_second: float | None
    total_tokens_per_second: float | None
    decode: Ratio | None
    prefill: Ratio | None
    total: Ratio | None
    tokens_per_step: float | None
    shares: dict[str, float]
    same: int | None
    compared: int | None
    parted_at: float | None
    out_of_turn: int


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a file, against one baseline."""

    baseline: str
    session: dict[str, Any]
    workers: dict[str, dict[str, Any]]  # versions and settings by system
    rows: list[Row]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def report(results: Results, baseline: str | None = None) -> Report:
    """Everything the tables show; without a name the baseline is `plain`, or the first system."""
    cells = _cells(results)
    systems = list(dict.fromkeys(system for cell in cells.values() for system in cell))
    if not systems:
        raise InputError("the file holds no answers yet; run graft bench first")
    if baseline is None:
        baseline = PLAIN if PLAIN in systems else systems[0]
    if baseline not in systems:
        raise InputError(f"no answers of {baseline!r}; the baseline can be {', '.join(systems)}")
    rows = [
        row
        for cell, by_system in sorted(cells.items())
        for category in _categories(by_system)
        for row in _rows(results, cell, by_system, baseline, category)
    ]
    return Report(baseline, results.sessions[-1], results.workers, rows, _notes(results, rows))


def _cells(results: Results) -> dict[Cell, dict[str, Runs]]:
    repeats: dict[tuple[Cell, str, tuple[int, ...]], list[Answer]] = defaultdict(list)
    for (numbers, system, temperature, batch, _), answer in results.answers.items():
        if answer.error is None:
            repeats[(batch, temperature), system, numbers].append(answer)
    cells: dict[Cell, dict[str, Runs]] = defaultdict(lambda: defaultdict(dict))
    order = _order(results)
    for (cell, system, numbers), answers in sorted(repeats.items(), key=lambda i: order[i[0][1]]):
        cells[cell][system][numbers] = as_run(answers)
    return cells


def _order(results: Results) -> dict[str, int]:
    """Systems as they were named, not as they took turns."""
    named = [
        name
        for session in results.sessions
        for name in (*session["options"]["draft"], *session["options"]["peers"])
    ]
    return {name: place for place, name in enumerate(dict.fromkeys(named))}


def _categories(by_system: dict[str, Runs]) -> list[str]:
    found = sorted({run.category for runs in by_system.values() for run in runs.values()})
    return [*found, ALL] if len(found) > 1 else found


def _rows(
    results: Results, cell: Cell, by_system: dict[str, Runs], baseline: str, category: str
) -> Iterator[Row]:
    base = by_system.get(baseline, {})
    for system, runs in by_system.items():
        mine = {n: run for n, run in runs.items() if category in (ALL, run.category)}
        shared = [numbers for numbers in mine if numbers in base]
        pairs = [(base[numbers], mine[numbers]) for numbers in shared]
        measured = [mine[numbers] for numbers in shared or mine]
        if not measured:
            continue
        reference = by_system.get(_reference(system, list(by_system), baseline, cell[1]), {})
        parted = _parted(results, mine, reference)
        places = [place for place in parted if place is not None]
        yield Row(
            batch=cell[0],
            temperature=cell[1],
            category=category,
            system=system,
            prompts=len(measured) * cell[0],
            tokens_per_second=decode_speed(measured),
            total_tokens_per_second=total_speed(measured),
            decode=decode_ratio(pairs),
            prefill=prefill_ratio(pairs),
            total=total_ratio(pairs),
            tokens_per_step=tokens_per_step(measured),
            shares=shares(measured),
            same=len(parted) - len(places) if parted else None,
            compared=len(parted) or None,
            parted_at=median(places) if places else None,
            out_of_turn=sum(one.session != other.session for one, other in pairs),
        )


def _reference(system: str, systems: list[str], baseline: str, temperature: float) -> str:
    """Whose answers a system's must equal, or "": sampled, only Graft draws with Graft's noise."""
    if temperature == 0:
        return baseline
    ours = [name for name in systems if name not in PEERS]
    if system in PEERS or not ours:
        return ""
    return baseline if baseline in ours else ours[0]


def _parted(results: Results, mine: Runs, reference: Runs) -> list[int | None]:
    """For every shared answer the token at which it parts from the reference's."""
    return [
        first_difference(
            results.token_ids[reference[numbers].output], results.token_ids[run.output]
        )
        for numbers, run in mine.items()
        if numbers in reference
    ]


def _notes(results: Results, rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know besides."""
    notes = []
    dtype = results.sessions[-1]["fixed"]["dtype"]
    for row in overall(rows):
        if row.system not in PEERS and row.compared and row.same != row.compared:
            wrong = "in fp32 this must not happen: please report it"
            why = wrong if dtype == "fp32" else f"{dtype} may round differently in larger steps"
            notes.append(
                f"{row.system}: {row.compared - row.same} of {row.compared} answers differ from "
                f"the reference (temperature {row.temperature:g}, batch {row.batch}); {why}"
            )
    for system in dict.fromkeys(row.system for row in rows if row.out_of_turn):
        notes.append(f"{system} was partly measured in another session than the baseline")
    failed = [answer.system for answer in results.answers.values() if answer.error]
    for system in dict.fromkeys(failed):
        notes.append(f"{system}: {failed.count(system)} measurements failed")
    return notes


def overall(rows: Sequence[Row]) -> list[Row]:
    """The rows that are about all prompts of their cell."""
    last = {(row.batch, row.temperature): row.category for row in rows}
    return [row for row in rows if last[row.batch, row.temperature] == row.category]


def heading(told: Report) -> str:
    """Model, machine, versions, date: one paragraph."""
    session, fixed = told.session, told.session["fixed"]
    where = ", ".join(session["hardware"]["gpus"]) or session["hardware"]["cpu"]
    versions = ", ".join(f"{name} {number}" for name, number in _versions(told).items())
    commit = f" ({session['commit']})" if session.get("commit") else ""
    return (
        f"{fixed['suite']}: {fixed['model']}, {fixed['dtype']}, at most {fixed['max_tokens']} "
        f"tokens; {where}, {fixed['threads']} threads; {versions}{commit}; {session['date'][:10]}"
    )


def _versions(told: Report) -> dict[str, str]:
    """Of Graft's environment, then of the peers' engines."""
    ours = told.session["versions"]
    theirs = [told.workers[name]["versions"] for name in told.workers if name in PEERS]
    return ours | {k: v for each in theirs for k, v in each.items() if k not in ours}


def legend(told: Report) -> str:
    """How to read the columns."""
    return (
        f"Ratios: time of {told.baseline} over time of the system, paired by prompt, geometric "
        "mean (95 % t interval); above 1 is faster. same: answers equal to the reference's, "
        "@ the median token at which others part. all: tokens/s with the prompts' time."
    )


def cells_of(told: Report) -> dict[str, list[Row]]:
    """Rows by cell, under the cell's title."""
    cells: dict[str, list[Row]] = defaultdict(list)
    for row in told.rows:
        draws = "greedy" if row.temperature == 0 else f"temperature {row.temperature:g}"
        cells[f"{draws}, {row.batch} at a time" if row.batch > 1 else draws].append(row)
    return cells


def columns(*, batched: bool) -> dict[str, int]:
    """Headings of `figures` and their widths: 100 with the system's name and gaps of one."""
    speed = {"tok/s": 6, "all": 6} if batched else {"tok/s": 6}
    guessed = 13 if batched else 20
    ratios = {"decoding": 16, "prefill": 7, "end to end": 16}
    return {**speed, **ratios, "tok/step": 8, "guessed by": guessed, "same": 9}


def figures(row: Row) -> list[str]:
    """A row's cells, ready to show; speeds with prompts included only for batches."""
    speeds = [_number(row.tokens_per_second, 1)]
    if row.batch > 1:
        speeds.append(_number(row.total_tokens_per_second, 1))
    by = " ".join(f"{source} {share:.0%}" for source, share in row.shares.items() if share > 0.005)
    same = NOTHING if row.compared is None else f"{row.same}/{row.compared}"
    return [
        *speeds,
        _interval(row.decode),
        _number(row.prefill.mean if row.prefill else None, 2),
        _interval(row.total),
        _number(row.tokens_per_step, 2),
        by or NOTHING,
        same if row.parted_at is None else f"{same} @{row.parted_at:.0f}",
    ]


def _number(value: float | None, places: int) -> str:
    return NOTHING if value is None else f"{value:.{places}f}"


def _interval(ratio: Ratio | None) -> str:
    if ratio is None:
        return NOTHING
    if ratio.low is None or ratio.low == ratio.high:
        return f"{ratio.mean:.2f}"
    high = f"{ratio.high:.2f}" if ratio.high < 10 else f"{ratio.high:.3g}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f}–{high})"


def as_tables(told: Report) -> "list[Table]":
    """For a terminal of 100 columns: one table per category of a cell."""
    from itertools import groupby

    tables = []
    for title, rows in cells_of(told).items():
        for category, group in groupby(rows, key=lambda row: row.category):
            tables.append(_table(f"{title}: {category}", list(group)))
    return tables


def _table(title: str, rows: list[Row]) -> "Table":
    from rich.table import Table

    prompts = f"{rows[0].prompts} prompt{'s' if rows[0].prompts > 1 else ''}"
    table = Table(
        title=f"{title}, {prompts}",
        title_style="bold",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    table.add_column("", width=11, overflow="fold")
    for name, width in columns(batched=rows[0].batch > 1).items():
        table.add_column(name, width=width, justify="left" if name == "guessed by" else "right")
    for row in rows:
        table.add_row(row.system, *figures(row))
    return table


def as_markdown(told: Report) -> str:
    """The same for a document."""
    parts = [f"{heading(told)}.", legend(told)]
    for title, rows in cells_of(told).items():
        names = ["category", "prompts", "system", *columns(batched=rows[0].batch > 1)]
        lines = [f"**{title}**", "", _markdown_row(names)]
        lines.append(
            _markdown_row(["---", "--:", "---", *["--:"] * (len(names) - 5), "---", "--:"])
        )
        for row in rows:
            cells = [row.category, str(row.prompts), row.system, *figures(row)]
            lines.append(_markdown_row(cells))
        parts.append("\n".join(lines))
    parts += [f"- {note}" for note in told.notes]
    return "\n\n".join(parts)


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
