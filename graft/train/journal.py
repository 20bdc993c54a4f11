"""A run's logs: text lines, JSON lines, and TensorBoard and a plot if installed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graft.home import atomic_file

LOG, PLOT = "log.jsonl", "loss.png"


class Journal:
    """Writes into the run's folder and passes text lines to `say`. Without a folder (in all but the
    first of several processes) it writes nothing."""

    def __init__(self, folder: Path | None, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._board = _board(folder) if folder else None
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def say(self, line: str) -> None:
        """Log a text line."""
        if self._folder:
            self._say(line)

    def note(self, **values: Any) -> None:  # noqa: ANN401 (JSON values)
        """Log a record; its numbers go to TensorBoard by name."""
        if not self._folder:
            return
        with (self._folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
        if self._board:
            for name, value in values.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(name, value, values.get("step", 0))

    def finish(self) -> None:
        """Plot the losses and close TensorBoard."""
        if self._board:
            self._board.close()
        if self._folder:
            draw_losses(self._folder / LOG, self._folder / PLOT)


def read_notes(log: Path) -> list[dict[str, Any]]:
    """The records, without an incomplete last line; the last record of a repeated step counts."""
    notes: dict[tuple[int, bool], dict[str, Any]] = {}
    if not log.is_file():
        return []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue
        notes[note.get("step", 0), "loss" in note] = note
    return [notes[key] for key in sorted(notes)]


def draw_losses(log: Path, picture: Path) -> None:
    """Plot loss and held-out tokens per step, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    notes = read_notes(log)
    figure = Figure(figsize=(8, 6), layout="constrained")
    panels = figure.subplots(2, sharex=True)
    for panel, name in zip(panels, ("loss", "tokens_per_step"), strict=True):
        shown = [note for note in notes if name in note]
        panel.plot([note["step"] for note in shown], [note[name] for note in shown])
        panel.set_ylabel(name.replace("_", " "))
    panels[-1].set_xlabel("step")
    with atomic_file(picture) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _board(folder: Path) -> Any:  # noqa: ANN401 (TensorBoard's writer, or None)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
