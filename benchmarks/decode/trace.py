"""`graft bench trace`: what a network would have guessed at every token of recorded answers."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def trace(  # noqa: PLR0913 (one parameter is one option)
    file: Annotated[Path, typer.Argument(metavar="FILE", help="From graft bench.")],
    *,
    draft: Annotated[str, typer.Option(metavar="NAME", help="Such as eagle2, longspec, sd.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Gzipped JSON lines; beside FILE if not given."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="If it has another name than when it was measured.")
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="For sd, sd-tree.")
    ] = None,
    head: Annotated[str, typer.Option(metavar="FOLDER", help="A draft head.")] = "auto",
    gamma: Annotated[int | None, typer.Option(help="Tokens of a draft model's chain.")] = None,
) -> None:
    """Answer a result file's prompts again and keep a network's guesses, for graft simulate.

    Example: graft bench trace results.jsonl --draft eagle2
    """
    from graft.assemble import check_draft, load
    from graft.bench.records import read_results
    from graft.bench.simulate.recordings import recordings_of
    from graft.bench.simulate.traces import trace as traced
    from graft.bench.simulate.traces import write_traces
    from graft.models.heads.load import may_have_head

    results = read_results(file)
    cells = recordings_of(results, file)
    chosen = None if head == "none" else head
    check_draft(draft, draft_model=draft_model is not None, head=may_have_head(chosen))
    fixed = results.sessions[0]["fixed"]
    length = fixed["context length"]
    engine = load(
        model or fixed["model"],
        draft_model=draft_model,
        head=chosen,
        dtype=fixed["dtype"],
        device=fixed["device"],
        context_length=length if isinstance(length, int) else None,
        draft=draft,
        gamma=gamma,
        max_batch=1,
        prefix_cache=0,
    )
    _, lines = traced(engine, draft, cells, _say if sys.stderr.isatty() else lambda _: None)
    path = out or file.with_suffix(f".{draft}.jsonl.gz")
    write_traces(path, lines)
    _say(f"traces: {path}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
