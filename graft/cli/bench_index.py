"""`graft bench index`: how fast indexes are built and asked."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from graft.cli.bench import JSON
from graft.cli.bench_journal import measure_into


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

    settings = index_settings(sizes, only, text, repeats)
    measure_into(out, (INDEX, KEY), partial(run, settings), as_markdown, json=json)
