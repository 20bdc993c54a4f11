"""What a result file says: a row per system, category by category, cell by cell."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from graft.bench.metrics import (
    Drafting,
    Ratio,
    Run,
    as_run,
    decode_ratio,
    decode_speed,
    drafting,
    first_difference,
    kept_by_position,
    mean_prefill,
    prefill_ratio,
    shares,
    step_seconds,
    tokens_per_step,
    total_ratio,
    total_speed,
)
from graft.bench.quality.report import Quality, qualities
from graft.bench.records import Answer, Results
from graft.bench.systems import NOTHING_KEPT, PEERS
from graft.errors import InputError

ALL = "all"
PLAIN = "plain"
Runs = dict[tuple[int, ...], Run]  # by the numbers of the prompts
Cell = tuple[int, int, float]  # context, batch, temperature


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one category of one cell, over the prompts it shares with the baseline.

    `same` of `compared` answers equal the reference's; None where nothing can be said, as when
    two engines draw with different noise. `parted_at` is the median place of the others.
    `out_of_turn` pairs were measured in different sessions.
    """

    context: int
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
    drafting: Drafting | None
    shares: dict[str, float]
    same: int | None
    compared: int | None
    parted_at: float | None
    out_of_turn: int
    prefill_seconds: float | None = None  # until every prompt of a batch has its first token
    step_seconds: float | None = None
    kept_by_position: list[float] = field(default_factory=list)  # share of steps; see metrics
    keeps: str = ""  # what answers have in common with the model's own: see System

    @property
    def cell(self) -> Cell:
        """What was measured apart from everything else."""
        return self.context, self.batch, self.temperature


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a file, against one baseline."""

    baseline: str
    session: dict[str, Any]
    workers: dict[str, dict[str, Any]]  # versions and settings by system
    rows: list[Row]
    notes: list[str]
    quality: list[Quality] = field(default_factory=list)  # where the suite has gold

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def report(results: Results, baseline: str | None = None, *, run_code: bool = False) -> Report:
    """Everything the tables show; without a name the baseline is `plain`, or the first system.

    `run_code` lets programs that a model wrote be run, for pass@1.
    """
    cells = runs_by_cell(results)
    systems = list(dict.fromkeys(system for cell in cells.values() for system in cell))
    if not systems:
        raise InputError("the file holds no answers yet; run graft bench first")
    if baseline is None:
        baseline = usual_baseline(systems)
    if baseline not in systems:
        raise InputError(f"no answers of {baseline!r}; the baseline can be {', '.join(systems)}")
    rows = [
        row
        for cell, by_system in sorted(cells.items())
        for category in _categories(by_system)
        for row in _rows(results, cell, by_system, baseline, category)
    ]
    quality, missing = qualities(results, baseline, run_code=run_code)
    notes = [*_notes(results, rows), *missing]
    return Report(baseline, results.sessions[-1], results.workers, rows, notes, quality)


def usual_baseline(systems: Sequence[str]) -> str:
    """What others are held against where nobody says."""
    return PLAIN if PLAIN in systems else systems[0]


def runs_by_cell(results: Results) -> dict[Cell, dict[str, Runs]]:
    """What every system did with every group of prompts, cell by cell."""
    repeats: dict[tuple[Cell, str, tuple[int, ...]], list[Answer]] = defaultdict(list)
    for (numbers, system, temperature, batch, context, _), answer in results.answers.items():
        if answer.error is None:
            repeats[(context, batch, temperature), system, numbers].append(answer)
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
    context, batch, temperature = cell
    base = by_system.get(baseline, {})
    for system, runs in by_system.items():
        mine = {n: run for n, run in runs.items() if category in (ALL, run.category)}
        shared = [numbers for numbers in mine if numbers in base]
        pairs = [(base[numbers], mine[numbers]) for numbers in shared]
        measured = [mine[numbers] for numbers in shared or mine]
        if not measured:
            continue
        keeps = measured[0].keeps
        reference = by_system.get(_reference(system, list(by_system), baseline, temperature), {})
        if temperature > 0 and keeps not in ("", "text"):
            reference = {}  # it draws with another noise, or from another distribution
        parted = _parted(results, mine, reference)
        places = [place for place in parted if place is not None]
        yield Row(
            context=context,
            batch=batch,
            temperature=temperature,
            category=category,
            system=system,
            prompts=len(measured) * batch,
            tokens_per_second=decode_speed(measured),
            total_tokens_per_second=total_speed(measured),
            decode=decode_ratio(pairs),
            prefill=prefill_ratio(pairs),
            total=total_ratio(pairs),
            tokens_per_step=tokens_per_step(measured),
            drafting=drafting(measured),
            shares=shares(measured),
            same=len(parted) - len(places) if parted else None,
            compared=len(parted) or None,
            parted_at=median(places) if places else None,
            out_of_turn=sum(one.session != other.session for one, other in pairs),
            prefill_seconds=mean_prefill(measured),
            step_seconds=step_seconds(measured),
            kept_by_position=kept_by_position(measured),
            keeps=keeps,
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
    """For every answer both gave the token at which it parts from the reference's."""
    ids = results.token_ids
    return [
        first_difference(expected, found)
        for numbers, run in mine.items()
        if numbers in reference
        for expected, found in zip(ids[reference[numbers].output], ids[run.output], strict=True)
    ]


def _notes(results: Results, rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know besides."""
    notes = list(dict.fromkeys(n for each in results.sessions for n in each.get("notes", ())))
    dtype = results.sessions[-1]["fixed"]["dtype"]
    for row in overall(rows):
        if row.keeps == NOTHING_KEPT:
            continue
        if row.system not in PEERS and row.compared and row.same != row.compared:
            wrong = "in fp32 this must not happen: please report it"
            why = wrong if dtype == "fp32" else f"{dtype} may round differently in larger steps"
            notes.append(
                f"{row.system}: {row.compared - row.same} of {row.compared} answers differ from "
                f"the reference (temperature {row.temperature:g}, batch {row.batch}"
                f"{f', context {row.context}' if row.context else ''}); {why}"
            )
    for system in dict.fromkeys(row.system for row in rows if row.keeps == NOTHING_KEPT):
        notes.append(f"{system} does not keep the model's own output: compare quality too")
    for system in dict.fromkeys(row.system for row in rows if row.out_of_turn):
        notes.append(f"{system} was partly measured in another session than the baseline")
    ratios = [ratio for row in rows for ratio in (row.decode, row.total) if ratio]
    if any(ratio.pairs > 1 and ratio.low is None for ratio in ratios):
        notes.append(
            "no intervals: they need scipy; pip install 'graftlm[bench]', then graft bench report"
        )
    failed = [answer.system for answer in results.answers.values() if answer.error]
    for system in dict.fromkeys(failed):
        notes.append(f"{system}: {failed.count(system)} measurements failed")
    return notes


def overall(rows: Sequence[Row]) -> list[Row]:
    """The rows that are about all prompts of their cell."""
    last = {row.cell: row.category for row in rows}
    return [row for row in rows if last[row.cell] == row.category]
