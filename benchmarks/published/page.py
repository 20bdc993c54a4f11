"""Specifications of tables and their markdown."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graft.bench.result_file import Results, read_results

WIDTH = 160
RESULTS = Path(__file__).parents[2] / "results"


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells of a table, and figures that texts refer to by name."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the page.

    `text` says how it was measured and what was found; `{figure}` in it is a figure of the grid.
    Hardware and date come from the headers of the files. A grid without columns is an item of a
    list. The summary refers to figures as `{name[figure]}`.
    """

    name: str
    title: str
    files: Sequence[str]
    command: str
    text: str
    build: Callable[..., Grid]

    def read(self) -> list[Results]:
        """Its files, in order."""
        return [read_results(RESULTS / f"{name}.jsonl") for name in self.files]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its tables."""

    title: str
    tables: Sequence[Table]


def table_markdown(table: Table, results: Sequence[Results], grid: Grid) -> str:
    """Text, origin and cells of a table."""
    text = f"**{table.title}.** {table.text.format(**grid.figures)} ({origin(table, results)})"
    if not grid.columns:
        return bullets([text])
    alignment = ["---", *("--:" for _ in grid.columns[1:])]
    lines = [grid.columns, alignment, *grid.rows]
    cells = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{paragraph(text)}\n\n{cells}"


def origin(table: Table, results: Sequence[Results]) -> str:
    """Machine, dates, files and command."""
    headers = [header for each in results for header in each.headers]
    machines = dict.fromkeys(_machine(header.hardware) for header in headers)
    dates = sorted({header.date[:10] for header in headers})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1][8:]}"
    files = ", ".join(f"`{name}`" for name in table.files)
    return f"{', '.join(machines)}, {when}; {files}; `{table.command}`"


def _machine(hardware: Mapping) -> str:
    if hardware["gpus"]:
        return hardware["gpus"][0].removeprefix("NVIDIA ")
    cores = hardware["cores"]
    name = re.sub(r"\(R\)| Processor.*", "", hardware["cpu"]).replace("-", " ")
    return f"{cores} {name} core{'s' if cores > 1 else ''}"


def paragraph(text: str) -> str:
    """Wrapped lines."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False
    )


def bullets(lines: Sequence[str]) -> str:
    """A list, each item wrapped."""
    wrapped = (paragraph(line).replace("\n", "\n  ") for line in lines)
    return "\n".join(f"- {each}" for each in wrapped)
