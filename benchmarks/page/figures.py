"""A figure as SVG that stands in a page: text stays text, black is the page's own colour."""

import io
import re
from typing import TYPE_CHECKING

from benchmarks.report import Figure
from graft.bench.sizes import short
from graft.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, WIDE, HEIGHT = 7, 13, 3.3  # inches
MANY = 4  # categories that need the whole width
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
# Okabe and Ito: distinct with colour-blindness, visible on light and dark
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A900", "#888888")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def is_wide(figure: Figure) -> bool:
    """Whether it needs a row of its own."""
    return figure.bars and max(map(len, figure.lines.values())) >= MANY


def svg(figure: Figure, name: str) -> str:
    """`name` is put before every id, so that figures of one page do not share them."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise InputError("the page needs matplotlib: pip install 'graftlm[bench]'") from None
    style = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}
    file = io.StringIO()
    with rc_context(style):
        size = (WIDE if is_wide(figure) else WIDTH, HEIGHT)
        drawing = Drawing(figsize=size, layout="constrained")
        axes = drawing.subplots()
        _bars(axes, figure) if figure.bars else _lines(axes, figure)
        axes.set_ylabel(figure.y)
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        drawing.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    return _inline(file.getvalue(), name)


def _bars(axes: "Axes", figure: Figure) -> None:
    categories = list(dict.fromkeys(x for points in figure.lines.values() for x, _ in points))
    width = 0.8 / len(figure.lines)
    for place, (label, points) in enumerate(figure.lines.items()):
        at = [categories.index(x) + (place + 0.5) * width - 0.4 for x, _ in points]
        colour = COLOURS[place % len(COLOURS)]
        axes.bar(at, [y for _, y in points], width * 0.92, label=label, color=colour)
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.set_xticks(range(len(categories)), categories)


def _lines(axes: "Axes", figure: Figure) -> None:
    for place, (label, points) in enumerate(figure.lines.items()):
        look = {"marker": MARKS[place % len(MARKS)], "color": COLOURS[place % len(COLOURS)]}
        axes.plot(*zip(*points, strict=True), label=label, **look)
    ticks = sorted({x for points in figure.lines.values() for x, _ in points})
    if figure.log_x:
        axes.set_xscale("log", base=2)
    if figure.log_x or len(ticks) <= len(MARKS) * 2:
        axes.set_xticks(
            ticks, [short(int(x)) if float(x).is_integer() else f"{x:g}" for x in ticks]
        )
        axes.minorticks_off()
    if figure.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(figure.x)


def _inline(text: str, name: str) -> str:
    """Only the element, with ids of its own and colours that follow the page's."""
    element = text[text.index("<svg") :]
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'href="#', f'href="#{name}-', element)
    element = element.replace("url(#", f"url(#{name}-").replace("#000000", "currentColor")
    return element.replace("<svg ", '<svg aria-hidden="true" ', 1).strip()
