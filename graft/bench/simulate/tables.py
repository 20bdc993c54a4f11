"""The outcomes of a simulation as tables: for every place drafts by rank, cells as columns."""

from collections.abc import Sequence

from graft.bench.decoding import PLAIN
from graft.bench.simulate.recordings import Cell
from graft.bench.simulate.run import Outcome, Simulated, ranking
from graft.bench.sizes import short
from graft.bench.summary import ALL
from graft.bench.table import Table, number

DETAILS = "speed-up, tokens/step, nodes/step"
MAX_DETAILED = 2  # cells that fit a line with all details


def tables(simulated: Simulated) -> list[Table]:
    """One for each cost table, batch and context, and one that compares with measurements."""
    whole = [outcome for outcome in simulated.outcomes if outcome.category == ALL]
    places = dict.fromkeys((each.costs, each.batch, each.context) for each in whole)
    made = [_ranked(place, [o for o in whole if _place(o) == place]) for place in places]
    compared = _compared([each for each in whole if each.draft != PLAIN])
    return [*made, compared] if compared.rows else made


def _place(outcome: Outcome) -> tuple[str, int, int | None]:
    return outcome.costs, outcome.batch, outcome.context


def _ranked(place: tuple[str, int, int | None], outcomes: list[Outcome]) -> Table:
    costs, batch, context = place
    at = f", context {short(context)}" if context else ""
    cells = list(dict.fromkeys(each.cell for each in outcomes))
    found = {(each.draft, each.cell): each for each in outcomes}
    detailed = len(cells) <= MAX_DETAILED
    columns = [
        "draft",
        *(_heading(cell, "speed-up" if not detailed else DETAILS) for cell in cells),
    ]
    if len(cells) > 1:
        columns.append("all\nspeed-up")
    rows = []
    for draft, mean in ranking(outcomes):
        row = [draft, *(_words(found[draft, cell], detailed=detailed) for cell in cells)]
        rows.append([*row, f"{mean:.2f}"] if len(cells) > 1 else row)
    return Table(f"costs {costs}, batch {batch}{at}", columns, rows)


def _heading(cell: Cell, figures: str) -> str:
    cut = f", {short(cell.context)}" if cell.context else ""
    return f"{cell.suite}, T {cell.temperature:g}{cut}\n{figures}"


def _words(outcome: Outcome, *, detailed: bool) -> str:
    if not detailed:
        return f"{outcome.speedup.mean:.2f}"
    return (
        f"{outcome.speedup.mean:.2f}  {outcome.tokens_per_step:5.2f}  {outcome.nodes_per_step:5.2f}"
    )


def _compared(outcomes: Sequence[Outcome]) -> Table:
    columns = ["draft", "on", "speed-up\npredicted", "measured", "off", "tokens/step\npredicted",
               "measured"]  # fmt: skip
    rows = [
        [
            each.draft,
            f"{each.cell}, batch {each.batch}",
            f"{each.speedup.mean:.2f}",
            number(each.measured_speedup, 2),
            f"{each.speedup.mean / each.measured_speedup - 1:+.1%}",
            f"{each.tokens_per_step:.3f}",
            number(each.measured_tokens_per_step, 3),
        ]
        for each in outcomes
        if each.measured_speedup
    ]
    return Table("predicted from plain decoding's outputs, and measured", columns, rows, left=2)
