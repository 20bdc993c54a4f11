"""A summary of decode results: one line per variant, category and cell, against a baseline."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from graft.bench.decoding import (
    INEXACT,
    OTHER_ENGINE,
    PLAIN,
    SAME_TEXT,
    DecodeRow,
    decode_ratio,
    decode_rows,
    decode_speed,
    first_difference,
    mean_prefill,
    median_row,
    nodes_per_step,
    prefill_ratio,
    summed,
    tokens_per_step,
    total_ratio,
    total_speed,
)
from graft.bench.result_file import Results
from graft.bench.sizes import short
from graft.bench.statistics import Estimate, warning
from graft.errors import InputError

ALL = "all"
Cell = tuple[str, int, int, float]  # suite, context, batch, temperature
ByPrompts = dict[tuple[int, ...], DecodeRow]


@dataclass(frozen=True, slots=True)
class Summary:
    """One variant in one category of one cell, over the prompts it shares with the baseline.

    `same` of `compared` outputs equal those of the baseline; None where they need not, such as
    samples of two engines. `differ_at` is the median of the first tokens that differ.
    """

    suite: str
    context: int
    batch: int
    temperature: float
    category: str
    variant: str
    prompts: int
    tokens: int
    tokens_per_second: float | None
    total_tokens_per_second: float | None
    prefill_seconds: float | None
    decode: Estimate | None
    prefill: Estimate | None
    total: Estimate | None
    tokens_per_step: float | None
    nodes_per_step: float | None
    drafted_by_source: dict[str, int]
    accepted_by_source: dict[str, int]
    same: int | None
    compared: int | None
    differ_at: float | None
    other_session: int  # pairs whose two rows are of different runs
    exactness: str = SAME_TEXT

    @property
    def cell(self) -> Cell:
        """What is measured apart from everything else."""
        return self.suite, self.context, self.batch, self.temperature


def summarize(results: Results, baseline: str | None = None) -> tuple[str, list[Summary]]:
    """The baseline and every summary of a file; by default the baseline is `plain`."""
    rows = decode_rows(results)
    variants = list(dict.fromkeys(row.variant for row in rows))
    if not variants:
        raise InputError("the file has no measurements yet")
    baseline = baseline or (PLAIN if PLAIN in variants else variants[0])
    if baseline not in variants:
        raise InputError(f"no results of {baseline!r}; the baseline is one of {variants}")
    return baseline, summarize_rows(rows, baseline, token_ids(results))


def summarize_rows(
    rows: Sequence[DecodeRow], baseline: str, tokens: dict[str, list[list[int]]]
) -> list[Summary]:
    """Every summary of rows; `tokens` are the generated ones by the hash of the output."""
    return [
        summary
        for cell, by_variant in sorted(rows_by_cell(rows).items())
        for category in _categories(by_variant)
        for summary in _summaries(cell, by_variant, baseline, category, tokens)
    ]


def token_ids(results: Results) -> dict[str, list[list[int]]]:
    """Generated tokens by the hash of the output."""
    return {row["output"]: row["token_ids"] for row in results.rows if "token_ids" in row}


def rows_by_cell(rows: Sequence[DecodeRow]) -> dict[Cell, dict[str, ByPrompts]]:
    """Rows by cell, variant and prompts; repeats are merged."""
    repeats: dict[tuple[Cell, str, tuple[int, ...]], list[DecodeRow]] = defaultdict(list)
    for row in rows:
        cell = row.suite, row.context, row.batch, row.temperature
        repeats[cell, row.variant, tuple(row.prompts)].append(row)
    cells: dict[Cell, dict[str, ByPrompts]] = defaultdict(lambda: defaultdict(dict))
    for (cell, variant, prompts), some in repeats.items():
        cells[cell][variant][prompts] = median_row(some)
    return cells


def _categories(by_variant: dict[str, ByPrompts]) -> list[str]:
    found = sorted({row.category for rows in by_variant.values() for row in rows.values()})
    return [*found, ALL] if len(found) > 1 else found


def _summaries(
    cell: Cell,
    by_variant: dict[str, ByPrompts],
    baseline: str,
    category: str,
    tokens: dict[str, list[list[int]]],
) -> Iterator[Summary]:
    base = by_variant.get(baseline, {})
    for variant in sorted(by_variant, key=lambda name: name != baseline):
        mine = {p: r for p, r in by_variant[variant].items() if category in (ALL, r.category)}
        pairs = [(base[prompts], mine[prompts]) for prompts in mine if prompts in base]
        rows = [row for _, row in pairs] or list(mine.values())
        if not rows:
            continue
        differences = list(_differences(pairs, tokens)) if _comparable(pairs) else []
        places = [place for place in differences if place]
        yield Summary(
            *cell,
            category=category,
            variant=variant,
            prompts=sum(len(row.prompts) for row in rows),
            tokens=sum(row.tokens for row in rows),
            tokens_per_second=decode_speed(rows),
            total_tokens_per_second=total_speed(rows),
            prefill_seconds=mean_prefill(rows),
            decode=decode_ratio(pairs),
            prefill=prefill_ratio(pairs),
            total=total_ratio(pairs),
            tokens_per_step=tokens_per_step(rows),
            nodes_per_step=nodes_per_step(rows),
            drafted_by_source=summed(row.drafted_by_source for row in rows),
            accepted_by_source=summed(row.accepted_by_source for row in rows),
            same=differences.count(None) if differences else None,
            compared=len(differences) or None,
            differ_at=median(places) if places else None,
            other_session=sum(one.session != other.session for one, other in pairs),
            exactness=rows[0].exactness,
        )


def _comparable(pairs: Sequence[tuple[DecodeRow, DecodeRow]]) -> bool:
    """Greedy outputs are; samples only where both use the same noise."""
    return all(
        one.temperature == 0 or one.exactness == other.exactness == SAME_TEXT
        for one, other in pairs
    )


def _differences(
    pairs: Sequence[tuple[DecodeRow, DecodeRow]], tokens: dict[str, list[list[int]]]
) -> Iterator[int | None]:
    """The first different token of every output; 0 where a file has hashes but no tokens."""
    for one, other in pairs:
        if one.output == other.output:
            yield from [None] * len(one.prompts)
        elif one.output in tokens and other.output in tokens:
            outputs = zip(tokens[one.output], tokens[other.output], strict=True)
            yield from (first_difference(*pair) for pair in outputs)
        else:
            yield 0


def overall(summaries: Sequence[Summary]) -> list[Summary]:
    """The summaries over all prompts of their cell."""
    last = {each.cell: each.category for each in summaries}
    return [each for each in summaries if last[each.cell] == each.category]


def notes(results: Results, baseline: str, summaries: Sequence[Summary]) -> list[str]:
    """Notes below the table: weak intervals, different outputs, errors."""
    found = [note for header in results.headers for note in header.notes]
    dtype = results.header.settings.get("dtype", "")
    for each in overall(summaries):
        where = cell_name(each)
        if each.variant != baseline and each.decode:
            found.append(warning(each.decode, f"{each.variant} ({where})") or "")
        lossless = each.exactness not in (INEXACT, OTHER_ENGINE)
        different = (each.compared or 0) - (each.same or 0)
        if lossless and different:
            why = "please report it" if dtype == "fp32" else f"{dtype} rounds by batch shape"
            found.append(
                f"{each.variant}: {different} of {each.compared} outputs differ from those of "
                f"{baseline} ({where}); {why}"
            )
    for variant in dict.fromkeys(each.variant for each in summaries if each.exactness == INEXACT):
        found.append(f"{variant} does not keep the model's output: compare quality too")
    for variant in dict.fromkeys(each.variant for each in summaries if each.other_session):
        found.append(f"{variant} was partly measured in another run than {baseline}")
    failed = [row["variant"] for row in results.rows if row.get("error")]
    found += [f"{name}: {failed.count(name)} measurements failed" for name in dict.fromkeys(failed)]
    return [note for note in dict.fromkeys(found) if note]


def cell_name(summary: Summary) -> str:
    """How the outputs of a cell were generated."""
    temperature = summary.temperature
    parts = [summary.suite, "greedy" if temperature == 0 else f"temperature {temperature:g}"]
    parts += [f"batch {summary.batch}"] if summary.batch > 1 else []
    parts += [f"context {short(summary.context)}"] if summary.context else []
    return ", ".join(part for part in parts if part)
