"""`graft bench kernels`: how fast attention and whole steps are, and how fast they could be."""

import json as json_module
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.bench import JSON, MARKDOWN, Progress, say, stopped
from graft.cli.options import takes_options
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.bench.kernels.records import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOptions:
    """As they are typed; what is left out (None) suits the device."""

    shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="llama-8b, qwen-0.5b, smollm2, ... or HEADS/KV_HEADS/HEAD_SIZE, and for whole "
            "steps /LAYERS/HIDDEN/INNER/VOCABULARY behind it.",
        ),
    ] = None
    contexts: Annotated[
        str | None, typer.Option(metavar="LIST", help="Tokens read before, such as 4k,32k,128k.")
    ] = None
    nodes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Of the tree, such as 1,8,64.")
    ] = None
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None
    device: Annotated[str, typer.Option(help="cpu, cuda, ... or auto.")] = "auto"
    layers: Annotated[
        int | None, typer.Option(help="Fewer than the shape has, to save memory.")
    ] = None
    only: Annotated[str | None, typer.Option(metavar="PART", help="attention or steps.")] = None
    repeats: Annotated[int | None, typer.Option(help="Times each is measured.")] = None


@takes_options
def kernels(  # noqa: PLR0913 (one parameter is one option)
    *,
    options: KernelOptions,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines; the same command goes on with them."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show this file and measure nothing."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG.")] = None,
    markdown: MARKDOWN = False,
    json: JSON = False,
) -> None:
    """Time tree attention and whole steps of a decoder with random weights.

    Beside them stand torch's own attention and the floor: what the memory's and the matrix units'
    speed, measured in the same run, allow. Nothing is downloaded.

    Example: graft bench kernels --shape llama-8b --contexts 4k,128k --out kernels.jsonl
    """
    if source is not None and out is not None:
        raise InputError("--from shows a file and --out measures; give one of them")
    found, complete = (_read(source), True) if source else _measure(options, out)
    if found.sessions:
        _show(found, markdown=markdown, json=json)
    if plot is not None:
        from graft.bench.kernels.plot import plot as draw

        draw(found, plot)
        say(f"plot: {plot}")
    if not complete:
        raise stopped(out)


def _read(source: Path) -> "Figures":
    from graft.bench.kernels.records import read_figures

    return read_figures(source)


def _measure(options: KernelOptions, out: Path | None) -> "tuple[Figures, bool]":
    """What was measured, and whether it is all: Ctrl-C or SIGTERM keep what there is."""
    from graft.bench.interrupts import sigterm_interrupts
    from graft.bench.kernels.records import open_journal
    from graft.bench.kernels.run import run
    from graft.bench.kernels.settings import Asked

    settings = Asked(**asdict(options)).settings()
    with sigterm_interrupts(), open_journal(out) as journal, Progress() as progress:
        try:
            run(settings, journal, progress)
        except KeyboardInterrupt:
            return journal.figures, False
        return journal.figures, True


def _show(found: "Figures", *, markdown: bool, json: bool) -> None:
    """Tables, Markdown or one JSON object."""
    from graft.bench.kernels.report import LEGEND, as_dict, as_markdown, as_table, heading, sheets
    from graft.bench.tables import WIDTH

    if json:
        print(json_module.dumps(as_dict(found)))
        return
    if markdown:
        print(as_markdown(found))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(heading(found), style="dim")
    for sheet in sheets(found):
        console.print(as_table(sheet))
        for note in sheet.notes:
            console.print(f"note: {note}", markup=False)
    console.print(LEGEND, style="dim")
