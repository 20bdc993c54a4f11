"""`graft bench index`: how fast indexes are built and asked."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from graft.cli.bench import JSON, Progress, say, stopped
from graft.cli.failures import INTERRUPTED


def index(
    *,
    sizes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Tokens of the text, such as 8k,128k,512k.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Of automaton,ngram,copy,counts,store.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A text, .gz too; made up if not given.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Times each is built; 5.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines; the same command goes on with them."),
    ] = None,
    json: JSON = False,
) -> None:
    """Time building and asking the indexes that drafts are looked up in.

    Example: graft bench index --sizes 8k,128k --out index.jsonl
    """
    from graft.bench.index.report import as_markdown
    from graft.bench.index.run import INDEX, KEY, index_settings, run
    from graft.bench.interrupts import sigterm_interrupts
    from graft.bench.journal import open_journal

    settings, complete = index_settings(sizes, only, text, repeats), True
    with sigterm_interrupts(), open_journal(out, INDEX, KEY) as journal:
        try:
            with Progress() as progress:
                run(settings, journal, progress)
        except KeyboardInterrupt:
            complete = False
    if journal.sessions:
        print(json_module.dumps(journal.rows) if json else as_markdown(journal))
    if out is not None:
        say(f"figures: {out}")
    if not complete:
        stopped(out)
        raise typer.Exit(INTERRUPTED)
