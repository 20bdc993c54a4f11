"""Result files as RAPID's table (Chen et al. 2025, Table 1): a row per context, batch and system.

Acceptance is accepted over drafted tokens, as RAPID counts it; others count tokens per step.
Prefill is until every prompt of a batch has its first token, retrieval included; the speed-up is
of decoding alone, over plain decoding in the same file.
"""

from collections.abc import Sequence

from graft.bench.quality.report import Quality
from graft.bench.report import Report, Row, overall
from graft.bench.sizes import short
from graft.bench.tables import NOTHING, heading, markdown_table, shown_estimate, shown_ratio
from graft.errors import InputError

COLUMNS = ["context", "batch", "system", "draft model", "accepted", "tok/step", "prefill s"]
COLUMNS += ["decoding", "output"]


def long_table(reports: Sequence[Report]) -> str:
    """The tables of several files, such as one for every draft model, as one."""
    measures = list(dict.fromkeys(each.measure for told in reports for each in told.quality))
    lines, notes = [], []
    for told in reports:
        if "plain" not in {row.system for row in told.rows}:
            raise InputError("the table needs plain decoding in every file: --draft plain,...")
        quality = _overall_quality(told)
        for row in overall(told.rows):
            mine = {each.measure: each for each in quality if _belongs(each, row)}
            lines.append((row.context, row.batch, [*_cells(told, row), *_scores(mine, measures)]))
        notes += [note for note in told.notes if note not in notes]
    rows = [cells for *_, cells in sorted(lines, key=lambda line: line[:2])]
    parts = [f"{heading(told)}." for told in reports]
    parts.append(markdown_table("long context", [*COLUMNS, *measures], rows))
    return "\n\n".join([*parts, *(f"- {note}" for note in notes)])


def _overall_quality(told: Report) -> list[Quality]:
    """Of all prompts of a cell: the last row of every measure."""
    found = {(each.cell, each.system, each.measure): each for each in told.quality}
    return list(found.values())


def _belongs(quality: Quality, row: Row) -> bool:
    return (quality.cell, quality.system) == (row.cell, row.system)


def _cells(told: Report, row: Row) -> list[str]:
    drafter = told.session["fixed"].get("draft model", "none")
    share = row.drafting.all.share if row.drafting else None
    return [
        short(row.context) if row.context else "whole",
        str(row.batch),
        row.system if row.temperature == 0 else f"{row.system}, T {row.temperature:g}",
        NOTHING if drafter == "none" else drafter,
        NOTHING if share is None else f"{share:.0%}",
        NOTHING if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}",
        NOTHING if row.prefill_seconds is None else f"{row.prefill_seconds:.2f}",
        shown_ratio(row.decode),
        row.keeps or NOTHING,
    ]


def _scores(mine: dict[str, Quality], measures: list[str]) -> list[str]:
    """A score, and behind it the difference to plain where there is one."""
    cells = []
    for measure in measures:
        found = mine.get(measure)
        change = found.difference if found else None
        cells.append(
            NOTHING
            if found is None
            else f"{found.value.mean:.3f}"
            + ("" if change is None else f" [{shown_estimate(change, sign='+')}]")
        )
    return cells
