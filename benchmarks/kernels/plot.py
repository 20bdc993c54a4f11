"""A picture of the figures: time against nodes, a panel per context, the floor dashed."""

from pathlib import Path
from typing import TYPE_CHECKING

from graft.bench.kernels.records import Figure, Figures
from graft.bench.kernels.report import heading, of_part
from graft.bench.plot import save
from graft.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 3.8, 3.4  # inches, of one panel
TITLES = {"attention": "attention of one layer", "step": "whole step, random weights"}


def plot(found: Figures, path: Path) -> None:
    """Write a PNG, whole or not at all: a row for attention, one for whole steps."""
    try:
        from matplotlib.figure import Figure as Picture
    except ImportError:
        raise InputError(
            "the plot needs matplotlib: pip install 'graftlm[bench]', then "
            "graft bench kernels --from FILE.jsonl --plot FILE.png"
        ) from None
    parts = [part for part in TITLES if of_part(found, part)]
    if not parts:
        raise InputError("nothing was measured yet, so there is nothing to draw")
    contexts = sorted({figure.context for figure in found.figures.values()})
    size = (max(WIDTH * len(contexts), 8), HEIGHT * len(parts) + 0.7)
    picture = Picture(figsize=size, layout="constrained")
    rows = picture.subplots(len(parts), len(contexts), squeeze=False, sharey="row")
    for part, panels in zip(parts, rows, strict=True):
        for context, panel in zip(contexts, panels, strict=True):
            mine = [each for each in of_part(found, part) if each.context == context]
            _draw(panel, sorted(mine, key=lambda each: each.nodes))
            panel.set_title(f"{TITLES[part]}, context {context:,}", fontsize=8)
        panels[0].set_ylabel("milliseconds")
        handles = {label: line for panel in panels for line, label in _legend(panel)}
        panels[0].legend(handles.values(), handles.keys(), fontsize=6.5, frameon=False)
    picture.suptitle(heading(found), fontsize=7, wrap=True)
    save(picture, path, dpi=130)


def _draw(panel: "Axes", figures: list[Figure]) -> None:
    """A line per kernel or forward, ours the thickest."""
    for what in dict.fromkeys(figure.what for figure in figures):
        mine = [each for each in figures if each.what == what and each.seconds]
        if mine:
            width = 2.4 if mine[0].ours else 1
            times = [each.seconds * 1000 for each in mine]
            nodes = [each.nodes for each in mine]
            panel.plot(nodes, times, marker="o", markersize=3, linewidth=width, label=what)
    floors = {figure.nodes: figure.floor * 1000 for figure in figures}
    panel.plot(list(floors), list(floors.values()), "k--", linewidth=1, label="floor")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(list(floors), [str(nodes) for nodes in floors])
    panel.set_xlabel("nodes of the tree")
    panel.tick_params(labelsize=7)
    panel.grid(visible=True, which="major", alpha=0.3)


def _legend(panel: "Axes") -> list[tuple[object, str]]:
    return list(zip(*panel.get_legend_handles_labels(), strict=True))
