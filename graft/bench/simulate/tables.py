"""The outcomes of a simulation as tables: drafts by speed-up, beside what was measured."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from statistics import geometric_mean

from graft.bench.decoding import PLAIN
from graft.bench.simulate.run import Outcome, Simulated
from graft.bench.sizes import short
from graft.bench.summary import cell_name, overall
from graft.bench.table import Table, interval, number

COLUMNS = ("draft", "prompts", "tok/s", "speed-up", "tok/step", "nodes/step")
MEASURED = ("measured\nspeed-up", "off", "measured\ntok/step")


def tables(simulated: Simulated) -> list[Table]:
    """One for each cost table, context and cell; several cells also together."""
    whole = {id(each) for each in overall([each.predicted for each in simulated.outcomes])}
    outcomes = [each for each in simulated.outcomes if id(each.predicted) in whole]
    made = []
    for place, group in groupby(outcomes, key=_place):
        cells = [list(cell) for _, cell in groupby(group, key=lambda each: each.predicted.cell)]
        made += [_table(f"{place}: {cell_name(cell[0].predicted)}", cell) for cell in cells]
        if len(cells) > 1:
            made.append(_ranking(place, [each for cell in cells for each in cell]))
    return made


def _place(outcome: Outcome) -> str:
    context = outcome.priced_context
    return f"costs {outcome.costs}" + (f", priced at {short(context)}" if context else "")


def _speedup(outcome: Outcome) -> float:
    return outcome.predicted.decode.mean if outcome.predicted.decode else 0.0


def _table(title: str, outcomes: Sequence[Outcome]) -> Table:
    compared = any(each.measured and each.predicted.variant != PLAIN for each in outcomes)
    rows = []
    for outcome in sorted(outcomes, key=_speedup, reverse=True):
        each, measured = outcome.predicted, outcome.measured
        row = [
            each.variant,
            str(each.prompts),
            number(each.tokens_per_second, 1),
            interval(each.decode),
            number(each.tokens_per_step, 2),
            number(each.nodes_per_step, 2),
        ]
        if compared:
            real = measured.decode.mean if measured and measured.decode else None
            off = f"{_speedup(outcome) / real - 1:+.1%}" if real else number(None, 0)
            steps = measured.tokens_per_step if measured else None
            row += [number(real, 2), off, number(steps, 3)]
        rows.append(row)
    return Table(title, (*COLUMNS, *MEASURED) if compared else COLUMNS, rows)


def _ranking(place: str, outcomes: Sequence[Outcome]) -> Table:
    """Drafts by the geometric mean of their speed-ups over all cells, the best first."""
    speedups = defaultdict(list)
    for outcome in outcomes:
        speedups[outcome.predicted.variant].append(_speedup(outcome))
    means = {draft: geometric_mean(values) for draft, values in speedups.items() if all(values)}
    ranked = sorted(means.items(), key=lambda pair: -pair[1])
    rows = [[draft, f"{mean:.2f}"] for draft, mean in ranked]
    return Table(f"{place}: all", ("draft", "speed-up"), rows)
