"""What pictures of a report show, one panel each: speed-up per task, speed by batch size, tokens
per step by context, acceptance by position and by source, the cost of a step by its nodes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

from graft.bench.report import PLAIN, Report, Row, overall
from graft.bench.sizes import short
from graft.bench.tables import cells_of, contexts_of, drafters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSITIONS = 16  # deeper ones are rare
FEW = 3  # categories that half a row has room for
# Okabe and Ito's: told apart by people who see fewer colours, and visible on light and on dark
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A900", "#888888")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True, slots=True)
class Panel:
    """`said` is the picture in words, for those who do not see it; `wide` needs a whole row."""

    title: str
    said: str
    draw: Callable[["Axes"], None]
    wide: bool = False


def panels(told: Report) -> list[Panel]:
    """All that a report has figures for."""
    return [
        *_speedups(told),
        *_batches(told),
        *_contexts(told),
        *_positions(told),
        *_sources(told),
        *_costs(told),
    ]


def colour(place: int) -> str:
    """The same for a system in every panel of one order."""
    return COLOURS[place % len(COLOURS)]


def _speedups(told: Report) -> Iterator[Panel]:
    """A panel per cell."""
    for title, rows in cells_of(told).items():
        rated = [row for row in rows if row.decode and row.system != told.baseline]
        said = "; ".join(f"{row.category}, {row.system}: {row.decode.mean:.2f}" for row in rated)
        yield Panel(
            f"decoding against {told.baseline}, {title}",
            f"Times as fast as {told.baseline}. {said or 'Nothing to compare'}.",
            lambda panel, rows=rows: _bars(panel, rows),
            wide=len({row.category for row in rows}) > FEW,
        )


def _bars(panel: "Axes", rows: Sequence[Row]) -> None:
    """A group of bars per category, a bar per system, intervals as whiskers."""
    categories = list(dict.fromkeys(row.category for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        mine = [row for row in rows if row.system == system and row.decode]
        at = [categories.index(row.category) + (place + 0.5) * width - 0.4 for row in mine]
        means = [row.decode.mean for row in mine]
        below = [row.decode.mean - (row.decode.low or nan) for row in mine]
        above = [(row.decode.high or nan) - row.decode.mean for row in mine]
        whiskers = {"yerr": [below, above], "ecolor": "#888888", "capsize": 2}
        panel.bar(at, means, width * 0.92, **whiskers, label=system, color=colour(place))
    panel.axhline(1, color="#888888", linewidth=0.8)
    slanted = {"rotation": 25, "ha": "right"} if len(categories) > 8 else {}
    panel.set_xticks(range(len(categories)), categories, **slanted)
    panel.set_ylabel("times as fast")
    highest = max((row.decode.mean for row in rows if row.decode), default=1.0)
    panel.set_ylim(0, max(1.25, 1.4 * highest))  # intervals of few prompts have no end
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16 if not slanted else -0.4)}
    panel.legend(fontsize=8, ncols=min(len(systems), 8), frameon=False, **below)


def _batches(told: Report) -> Iterator[Panel]:
    """Tokens per second of a whole batch, prompts included, by its size."""
    rows = overall(told.rows)
    if len({row.batch for row in rows}) > 1:
        lines = _lines(rows, lambda row: f"context {short(row.context)}" if row.context else "")
        points = {
            label: [(row.batch, row.total_tokens_per_second or nan) for row in mine]
            for label, mine in lines.items()
        }
        yield Panel(
            "speed by batch size",
            f"Tokens per second, prompts included, by prompts at a time. {spoken(points)}",
            lambda panel: draw_lines(panel, points, ("prompts at a time", "tokens/s, all")),
        )


def _contexts(told: Report) -> Iterator[Panel]:
    """Tokens per step by the length of the prompts, doubling from tick to tick."""
    contexts = contexts_of(told)
    if contexts:
        cut = [row for row in overall(told.rows) if row.context]
        lines = _lines(cut, lambda row: f"{row.batch} at a time" if row.batch > 1 else "")
        points = {
            label: [(row.context, _or_nan(row.tokens_per_step)) for row in mine]
            for label, mine in lines.items()
        }

        def draw(panel: "Axes") -> None:
            draw_lines(panel, points, ("context, tokens", "tokens per step"))
            panel.set_xscale("log", base=2)
            panel.set_xticks(contexts, map(short, contexts))
            panel.minorticks_off()

        said = f"Tokens per step by context. {spoken(points)}"
        yield Panel("tokens per step against context", said, draw)


def _positions(told: Report) -> Iterator[Panel]:
    """How often the first, second, ... token of a draft was kept."""
    rows = [row for row in overall(told.rows) if row.kept_by_position]
    if rows:
        lines = _lines(rows, _cell)
        points = {
            label: list(enumerate(mine[0].kept_by_position[:POSITIONS], 1))
            for label, mine in lines.items()
        }
        yield Panel(
            "acceptance by position",
            f"Share of steps that kept the token at a place of their draft. {spoken(points)}",
            lambda panel: draw_lines(panel, points, ("place in the draft", "share of steps")),
        )


def _sources(told: Report) -> Iterator[Panel]:
    """Which share of every source's guesses was right; the number of them beside it."""
    found = {
        f"{_name(row)}: {source}": guesses
        for row in drafters(overall(told.rows))
        for source, guesses in row.drafting.by_source.items()
        if guesses.drafted
    }
    if found:
        said = "; ".join(
            f"{name} {each.share:.0%} of {each.drafted}" for name, each in found.items()
        )

        def draw(panel: "Axes") -> None:
            names = list(found)[::-1]
            bars = panel.barh(names, [found[name].share for name in names], color=COLOURS[0])
            panel.bar_label(bars, [f"of {found[name].drafted:,}" for name in names], padding=3)
            panel.set_xlabel("share of its guesses that the model agreed with")
            panel.margins(x=0.15)

        yield Panel("acceptance by source", said, draw)


def _costs(told: Report) -> Iterator[Panel]:
    """What a step took by the guesses it checked, a point per category and system."""
    rows = [row for row in told.rows if row.drafting and row.step_seconds]
    points: dict[str, list[tuple[float, float]]] = {row.system: [] for row in rows}
    for row in sorted(rows, key=lambda row: row.drafting.nodes_per_step):
        at = 0.0 if row.system == PLAIN else row.drafting.nodes_per_step
        points[row.system].append((at, 1e3 * row.step_seconds))
    if len({at for mine in points.values() for at, _ in mine}) > 1:
        yield Panel(
            "cost of a step against its nodes",
            f"Milliseconds of a step by guesses checked in it. {spoken(points)}",
            lambda panel: draw_lines(
                panel, points, ("guesses per step", "ms per step"), line="none"
            ),
        )


def _lines(rows: Sequence[Row], cell: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows by who, and what else they do not share with the others."""
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        sampled = f"temperature {row.temperature:g}" if row.temperature else ""
        lines[", ".join(filter(None, (row.system, sampled, cell(row))))].append(row)
    return lines


def _cell(row: Row) -> str:
    """Context and batch, where they are not the plain ones."""
    context = f"context {short(row.context)}" if row.context else ""
    return ", ".join(filter(None, (context, f"{row.batch} at a time" if row.batch > 1 else "")))


def _name(row: Row) -> str:
    sampled = f"temperature {row.temperature:g}" if row.temperature else ""
    return ", ".join(filter(None, (row.system, sampled, _cell(row))))


def draw_lines(
    panel: "Axes",
    points: dict[str, list[tuple[float, float]]],
    labels: tuple[str, str],
    line: str = "-",
) -> None:
    """A line or a cloud per label; `labels` are of the axes."""
    for place, (label, mine) in enumerate(points.items()):
        look = {"marker": MARKS[place % len(MARKS)], "linestyle": line, "color": colour(place)}
        panel.plot(*zip(*mine, strict=True), label=label, **look)
    ticks = sorted({at for mine in points.values() for at, _ in mine})
    if all(float(at).is_integer() for at in ticks) and len(ticks) <= POSITIONS:
        panel.set_xticks(ticks)
    panel.set_xlabel(labels[0])
    panel.set_ylabel(labels[1])
    panel.legend(fontsize=8, ncols=1 + len(points) // 8, frameon=False)


def spoken(points: dict[str, list[tuple[float, float]]]) -> str:
    """Every line by its first and last point; the tables have the rest."""
    said = []
    for label, mine in points.items():
        ends = dict.fromkeys((mine[0], mine[-1]))
        said.append(f"{label}: {', '.join(f'{y:.3g} at {x:.3g}' for x, y in ends)}")
    return "; ".join(said) + "."


def _or_nan(value: float | None) -> float:
    return nan if value is None else value
