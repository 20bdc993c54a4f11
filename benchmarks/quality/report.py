"""How good the answers of a result file are: a row per system and measure, against the baseline.

Items are prompts; of repeats the first answer counts. Likelihoods of gold belong to whoever keeps
the model's distribution on the prompt it read, and to nobody else.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from graft.bench.quality.bootstrap import Estimate, detectable, difference, mean_of
from graft.bench.quality.scores import SCORES
from graft.bench.records import Answer, Results
from graft.bench.systems import NOTHING_KEPT, graft_system
from graft.bench.task import Gold
from graft.errors import InputError

ALL = "all"
LIKELIHOOD = "gold log p"
CODE = "code"
NOT_RUN = "no pass@1: it runs the programs that the model wrote; --run-code allows that"
Cell = tuple[int, int, float]  # context, batch, temperature
Values = dict[int, float]  # by a prompt's number


@dataclass(frozen=True, slots=True)
class Quality:
    """One measure of one system; `difference` is to the baseline on the items both answered, and
    `detectable` the one that so many items show four times in five."""

    context: int
    batch: int
    temperature: float
    category: str
    system: str
    measure: str
    value: Estimate
    difference: Estimate | None
    detectable: float | None

    @property
    def cell(self) -> Cell:
        """As of report.Row."""
        return self.context, self.batch, self.temperature


def qualities(
    results: Results, baseline: str, *, run_code: bool = False
) -> tuple[list[Quality], list[str]]:
    """All of a file, and what could not be scored; programs are run only if that is allowed."""
    values, notes = _values(results, run_code=run_code)
    rows = []
    for (cell, category, measure), by_system in values.items():
        base = by_system.get(baseline, {})
        for system, mine in by_system.items():
            shared = [number for number in mine if number in base and system != baseline]
            pairs = [base[number] for number in shared], [mine[number] for number in shared]
            rows.append(
                Quality(
                    *cell,
                    category,
                    system,
                    measure,
                    mean_of(list(mine.values())),
                    difference(*pairs) if shared else None,
                    detectable(*pairs) if shared else None,
                )
            )
    return sorted(rows, key=lambda row: (row.cell, row.category == ALL)), notes


def _values(
    results: Results, *, run_code: bool
) -> tuple[dict[tuple[Cell, str, str], dict[str, Values]], list[str]]:
    """Every item's values by cell, category and measure, then by system."""
    found: dict = defaultdict(lambda: defaultdict(dict))
    notes: dict[str, None] = {}
    if not run_code and any(gold.kind == CODE for gold in results.gold.values()):
        notes[NOT_RUN] = None
        results = replace(results, gold=_not_code(results.gold))
    for answer in results.answers.values():
        if answer.error is None and answer.repeat == 0:
            cell = answer.context, answer.batch, answer.temperature
            for number, measure, value in _scored(results, answer, notes):
                found[cell, answer.category, measure][answer.system][number] = value
    categories: dict = defaultdict(set)
    for cell, category, measure in found:
        categories[cell, measure].add(category)
    for (cell, measure), names in categories.items():
        if len(names) > 1:
            for name in sorted(names):
                for system, values in found[cell, name, measure].items():
                    found[cell, ALL, measure][system] |= values
    return found, list(notes)


def _not_code(gold: dict[int, Gold]) -> dict[int, Gold]:
    return {number: each for number, each in gold.items() if each.kind != CODE}


def _scored(
    results: Results, answer: Answer, notes: dict[str, None]
) -> Iterator[tuple[int, str, float]]:
    """number, measure, value."""
    texts = answer.replies or results.texts.get(answer.output)
    shortened = graft_system(answer.system).shortens
    for place, number in enumerate(answer.question_ids):
        gold = results.gold.get(number)
        if gold is None:
            continue
        for measure, score in SCORES[gold.kind].items() if texts else ():
            try:
                yield number, measure, score(texts[place], gold.references)
            except InputError as error:  # a package is missing
                notes[f"no {measure}: {error}"] = None
        known = results.likelihoods.get((number, answer.context, shortened))
        if known and answer.keeps and (shortened or answer.keeps != NOTHING_KEPT):
            yield number, LIKELIHOOD, known.per_token
