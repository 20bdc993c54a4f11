"""A panel as SVG that stands in a page: text stays text, black is the page's own colour."""

import io
import re

from graft.bench.panels import Panel
from graft.errors import InputError

WIDTH, WIDE, HEIGHT = 7, 13, 3.3  # inches
TALLER = 0.22  # for every line beyond a few, as of bars with names
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def svg(panel: Panel, name: str) -> str:
    """`name` is put before every id, so that pictures of one page do not share them."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("the page needs matplotlib: pip install 'graftlm[bench]'") from None
    style = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}
    file = io.StringIO()
    with rc_context(style):
        figure = Figure(figsize=(WIDE if panel.wide else WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        panel.draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        bars = len(axes.get_yticklabels()) if axes.get_xlabel().startswith("share of its") else 0
        figure.set_figheight(HEIGHT + TALLER * max(bars - 8, 0))
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    return _inline(file.getvalue(), name)


def _inline(text: str, name: str) -> str:
    """Only the element, with ids of its own and colours that follow the page's."""
    element = text[text.index("<svg") :]
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'href="#', f'href="#{name}-', element)
    element = element.replace("url(#", f"url(#{name}-").replace("#000000", "currentColor")
    return element.replace("<svg ", '<svg aria-hidden="true" ', 1).strip()
