"""Quality of the answers of a result file: a line per variant and measure, against the baseline.

Items are prompts; of repeats the first counts. The likelihood of gold holds for every variant that
keeps the model's distribution on the prompt that was prefilled.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.decode.graft_variants import shortens
from benchmarks.quality.power import detectable, difference
from benchmarks.quality.scores import SCORES
from graft.bench.decoding import INEXACT, OTHER_ENGINE, DecodeRow, decode_rows
from graft.bench.result_file import GOLD, LIKELIHOOD, Results, Row
from graft.bench.statistics import Estimate, mean
from graft.bench.summary import ALL, Cell
from graft.errors import InputError

GOLD_LOG_P = "gold log p"
RUN_CODE = "GRAFT_RUN_CODE"  # =1 allows pass@1, which runs programs that a model wrote
NOT_RUN = f"no pass@1: it runs the programs that the model wrote; {RUN_CODE}=1 allows that"
Values = dict[int, float]  # by prompt
ByMeasure = dict[tuple[Cell, str, str], dict[str, Values]]  # cell, category, measure; variant


@dataclass(frozen=True, slots=True)
class Quality:
    """One measure of one variant; `difference` is to the baseline on the prompts of both."""

    cell: Cell
    category: str
    variant: str
    measure: str
    value: Estimate
    difference: Estimate | None
    detectable: float | None


def qualities(results: Results, baseline: str) -> tuple[list[Quality], list[str]]:
    """All lines, and notes on what is not scored."""
    notes: dict[str, None] = {}
    found: ByMeasure = defaultdict(lambda: defaultdict(dict))
    for row in decode_rows(results):
        if row.repeat == 0:
            cell = row.suite, row.context, row.batch, row.temperature
            for prompt, measure, value in _scored(results, row, notes):
                found[cell, row.category, measure][row.variant][prompt] = value
    _add_all(found)
    lines = []
    for (cell, category, measure), by_variant in found.items():
        base = by_variant.get(baseline, {})
        for variant, mine in by_variant.items():
            shared = [prompt for prompt in mine if prompt in base and variant != baseline]
            pairs = [base[prompt] for prompt in shared], [mine[prompt] for prompt in shared]
            change = (difference(*pairs), detectable(*pairs)) if shared else (None, None)
            lines.append(
                Quality(cell, category, variant, measure, mean(list(mine.values())), *change)
            )
    return sorted(lines, key=lambda line: (line.cell, line.category == ALL)), list(notes)


def _add_all(found: ByMeasure) -> None:
    """Values over all categories, where there are several."""
    categories: dict[tuple[Cell, str], list[str]] = defaultdict(list)
    for cell, category, measure in found:
        categories[cell, measure].append(category)
    for (cell, measure), names in categories.items():
        for name in sorted(names) if len(names) > 1 else ():
            for variant, values in found[cell, name, measure].items():
                found[cell, ALL, measure][variant] |= values


def _scored(
    results: Results, row: DecodeRow, notes: dict[str, None]
) -> Iterator[tuple[int, str, float]]:
    """prompt, measure, value."""
    gold = {line["prompt"]: line for line in results.records[GOLD]}
    texts = row.replies or _texts(results).get(row.output)
    for place, prompt in enumerate(row.prompts):
        if prompt not in gold:
            continue
        if texts:
            yield from _scores(prompt, gold[prompt], texts[place], notes)
        shortened = shortens(row.variant)
        known = _likelihoods(results).get((prompt, row.context, shortened))
        lossless = row.exactness not in (INEXACT, OTHER_ENGINE)
        if known is not None and (lossless or shortened):
            yield prompt, GOLD_LOG_P, known


def _scores(
    prompt: int, gold: Row, text: str, notes: dict[str, None]
) -> Iterator[tuple[int, str, float]]:
    if gold["kind"] == "code" and os.environ.get(RUN_CODE) != "1":
        notes[NOT_RUN] = None
        return
    for measure, score in SCORES[gold["kind"]].items():
        try:
            yield prompt, measure, score(text, gold["references"])
        except InputError as error:  # a package is missing
            notes[f"no {measure}: {error}"] = None


def _texts(results: Results) -> dict[str, list[str]]:
    return {row["output"]: row["texts"] for row in results.rows if "texts" in row}


def _likelihoods(results: Results) -> dict[tuple[int, int, bool], float]:
    """Mean log p of a token, by prompt, context and whether the prompt is shortened."""
    return {
        (line["prompt"], line["context"], line["shortened"]): line["log_likelihood"]
        / line["tokens"]
        for line in results.records[LIKELIHOOD]
    }
