"""A picture of a report: all its panels, one below the other."""

from pathlib import Path
from typing import TYPE_CHECKING

from graft.bench.panels import panels
from graft.bench.report import Report
from graft.bench.tables import heading
from graft.errors import CheckpointError, InputError
from graft.home import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 10, 3.6  # inches, of one panel


def plot(told: Report, path: Path) -> None:
    """Write a PNG, whole or not at all: a panel per cell, others for what there are figures of."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "the plot needs matplotlib: pip install 'graftlm[bench]', then graft bench report FILE"
        ) from None
    shown = panels(told)
    figure = Figure(figsize=(WIDTH, HEIGHT * len(shown) + 0.6), layout="constrained")
    for axes, panel in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        panel.draw(axes)
        axes.set_title(panel.title, fontsize=10)
    figure.suptitle(heading(told), fontsize=8, wrap=True)
    save(figure, path, dpi=120)


def save(figure: "Figure", path: Path, *, dpi: int) -> None:
    """Write a PNG, whole or not at all."""
    try:
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=dpi)
    except CheckpointError as error:
        raise InputError(f"{path} cannot be written; name another --plot") from error
