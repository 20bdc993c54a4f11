"""`graft simulate`: predicted speed of drafters from recorded outputs and a cost table."""

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.bench import split, table_console
from graft.cli.options import JSON

if TYPE_CHECKING:
    from graft.bench.simulate.run import Simulated


def simulate(  # noqa: PLR0913 (one parameter is one option)
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="From graft bench --out.")],
    *,
    draft: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="auto, pld, copy, igpg, store:FOLDER, rest:FOLDER; joined by +."
        ),
    ] = "auto,pld,copy,igpg",
    costs: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Step costs: recorded, reference, a FILE, or SHAPE@HARDWARE.",
        ),
    ] = "recorded",
    like: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE@HARDWARE",
            help="Where the recorded table was measured; it is scaled to the others.",
        ),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="LIST", help="Prompts at a time.")] = "1",
    context: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Context of every step, such as 4k,32k."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a document.")] = (
        False
    ),
    json: JSON = False,
) -> None:
    """Replay recorded outputs through drafters, without a model, and predict their speed.

    auto is replayed as with --head none. Measurements of the same preset in FILE are shown too.

    Example: graft simulate results.jsonl --draft auto,copy --costs recorded,llama-8b@h200
    """
    from graft.bench.simulate.roofline import read_place
    from graft.bench.simulate.run import Simulation, simulate
    from graft.bench.sizes import size

    settings = Simulation(
        files=files,
        drafts=split(draft),
        costs=split(costs),
        batches=split(batch, int, "--batch takes whole numbers"),
        contexts=split(context, size, "--context takes whole numbers such as 4k")
        if context
        else (None,),
        like=read_place(like) if like else None,
    )
    _show(simulate(settings), markdown=markdown, json=json)


def _show(simulated: "Simulated", *, markdown: bool, json: bool) -> None:
    from graft.bench.simulate.tables import tables

    if json:
        print(json_module.dumps(asdict(simulated)))
        return
    if markdown:
        print("\n\n".join(table.as_markdown() for table in tables(simulated)))
        return
    console = table_console()
    for table in tables(simulated):
        console.print(table.as_rich())
    console.print(
        f"{simulated.steps:,} steps in {simulated.seconds:.1f} s: "
        f"{simulated.steps / max(simulated.seconds, 1e-9):,.0f} steps a second",
        style="dim",
    )
