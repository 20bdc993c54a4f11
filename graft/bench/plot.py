"""A picture of a report: decoding speed against the baseline, speed over batch sizes, tokens per
step over contexts."""

from collections import defaultdict
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from graft.bench.report import Report, Row, overall
from graft.bench.sizes import short
from graft.bench.tables import cells_of, contexts_of, heading
from graft.errors import CheckpointError, InputError
from graft.home import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 10, 3.6  # inches, of one panel


def plot(told: Report, path: Path) -> None:
    """Write a PNG, whole or not at all: a panel per cell, one for batches and one for contexts if
    there are several."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "the plot needs matplotlib: pip install 'graftlm[bench]', then graft bench report FILE"
        ) from None
    cells = cells_of(told)
    lines = []
    if len({row.batch for row in told.rows}) > 1:
        lines.append(_over_batches)
    if contexts_of(told):
        lines.append(_over_contexts)
    count = len(cells) + len(lines)
    figure = Figure(figsize=(WIDTH, HEIGHT * count + 0.6), layout="constrained")
    panels = figure.subplots(count, squeeze=False)[:, 0]
    for panel, (title, rows) in zip(panels, cells.items(), strict=False):
        _bars(panel, rows, f"decoding against {told.baseline}, {title}")
    for panel, draw in zip(panels[len(cells) :], lines, strict=True):
        draw(panel, overall(told.rows))
    figure.suptitle(heading(told), fontsize=8, wrap=True)
    save(figure, path, dpi=120)


def save(figure: "Figure", path: Path, *, dpi: int) -> None:
    """Write a PNG, whole or not at all."""
    try:
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=dpi)
    except CheckpointError as error:
        raise InputError(f"{path} cannot be written; name another --plot") from error


def _bars(panel: "Axes", rows: Sequence[Row], title: str) -> None:
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
        panel.bar(at, means, width * 0.92, yerr=[below, above], capsize=2, label=system)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_xticks(range(len(categories)), categories)
    panel.set_ylabel("times as fast")
    panel.set_title(title, fontsize=10)
    panel.legend(fontsize=8, ncols=len(systems), frameon=False)


def _over_batches(panel: "Axes", rows: Sequence[Row]) -> None:
    """Tokens per second of a whole batch, prompts included, by its size."""
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lines[_label(row, f"context {short(row.context)}" if row.context else "")].append(row)
    for label, mine in lines.items():
        speeds = [row.total_tokens_per_second for row in mine]
        panel.plot([row.batch for row in mine], speeds, marker="o", label=label)
    panel.set_xticks(sorted({row.batch for row in rows}))
    panel.set_xlabel("prompts at a time")
    panel.set_ylabel("tokens/s, all")
    panel.legend(fontsize=8, frameon=False)


def _over_contexts(panel: "Axes", rows: Sequence[Row]) -> None:
    """Tokens per step by the length of the prompts, doubling from tick to tick."""
    cut = [row for row in rows if row.context]
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in cut:
        lines[_label(row, f"{row.batch} at a time" if row.batch > 1 else "")].append(row)
    for label, mine in lines.items():
        gains = [nan if row.tokens_per_step is None else row.tokens_per_step for row in mine]
        panel.plot([row.context for row in mine], gains, marker="o", label=label)
    contexts = sorted({row.context for row in cut})
    panel.set_xscale("log", base=2)
    panel.set_xticks(contexts, map(short, contexts))
    panel.minorticks_off()
    panel.set_xlabel("context, tokens")
    panel.set_ylabel("tokens per step")
    panel.legend(fontsize=8, frameon=False)


def _label(row: Row, cell: str) -> str:
    """A line's name: who, and what else it does not share with the others."""
    sampled = f"temperature {row.temperature:g}" if row.temperature else ""
    return ", ".join(filter(None, (row.system, sampled, cell)))
