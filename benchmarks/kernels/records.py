"""Figures as JSON lines: a `header` per session, then a line for everything measured."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from graft.bench.records import held, read_rows, write_row
from graft.errors import InputError

FORMAT = 1
Key = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How long `what` took: one layer's attention, or a whole step; seconds throughout.

    `ours` is what Graft uses here. `device_seconds` leave out what the host did. Without `seconds`
    the note says why.
    """

    part: str  # "attention" or "step"
    what: str
    context: int
    nodes: int
    floor: float
    session: int
    ours: bool = False
    seconds: float | None = None
    device_seconds: float | None = None
    error: float | None = None
    note: str | None = None

    @property
    def key(self) -> Key:
        """What makes it unique in its file."""
        return self.part, self.what, self.context, self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes at the peak of the largest step; `rest` is activations, the kernel's scratch and what
    captured graphs keep. None where nobody counts, as on a CPU."""

    context: int
    nodes: int
    weights: int
    cache: int
    logits: int
    session: int
    rest: int | None = None
    reserved: int | None = None  # by torch's allocator, in all


@dataclass(slots=True)
class Figures:
    """All of a file; what was measured again counts."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[Key, Figure] = field(default_factory=dict)
    memory: MemoryUse | None = None

    def done(self, key: Key) -> bool:
        """Whether it need not be measured again."""
        return key in self.figures and self.figures[key].seconds is not None

    def take(self, row: dict[str, Any]) -> None:
        """One line of a file."""
        kind = row.pop("record")
        if kind == "kernels":
            if row["format"] != FORMAT:
                raise ValueError(row["format"])
            self.sessions.append(row)
        elif kind == "figure":
            figure = Figure(**row)
            self.figures[figure.key] = figure
        elif kind == "memory":
            self.memory = MemoryUse(**row)
        else:
            raise ValueError(kind)


def read_figures(path: Path) -> Figures:
    """Everything in a file; a last line cut short by an interruption is passed over."""
    found = Figures()
    read_rows(path, found.take)
    if not found.sessions:
        raise InputError(f"{path} has no header; give a file written by graft bench kernels")
    return found


@dataclass(slots=True)
class Journal:
    """What is measured goes into `figures` and, if there is one, at once into the file."""

    figures: Figures
    file: IO[str] | None = None
    path: Path = Path()

    def header(self, header: dict[str, Any]) -> None:
        """Begin a session."""
        self._add({"record": "kernels", "format": FORMAT, **header})

    def figure(self, figure: Figure) -> None:
        """One measurement."""
        self._add({"record": "figure", **_known(figure)})

    def memory(self, use: MemoryUse) -> None:
        """What the largest step took."""
        self._add({"record": "memory", **_known(use)})

    def _add(self, row: dict[str, Any]) -> None:
        if self.file is not None:
            write_row(self.file, self.path, row)
        self.figures.take(dict(row))


def _known(record: Figure | MemoryUse) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if value is not None}


@contextmanager
def open_journal(path: Path | None) -> Iterator[Journal]:
    """Go on with a file, or keep everything in memory."""
    with held(path) if path else nullcontext() as file:
        figures = Figures()
        if path:
            read_rows(path, figures.take)
        yield Journal(figures, file, path or Path())
