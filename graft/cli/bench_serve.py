"""`graft bench serve`: load on a running server, `graft serve` or any other of OpenAI's kind."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from graft.cli.bench import JSON
from graft.cli.bench_journal import measure_into
from graft.cli.failures import REFUSED
from graft.cli.options import takes_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """As they are typed."""

    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:8000"
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Where the server wants one.")
    ] = None
    model: Annotated[str | None, typer.Option(help="The server's first, if not given.")] = None
    concurrency: Annotated[
        str | None, typer.Option(metavar="LIST", help="Clients at a time; 1,4,16.")
    ] = None
    requests: Annotated[int, typer.Option(help="At every concurrency.")] = 32
    seconds: Annotated[
        float | None, typer.Option(help="So long at every concurrency, instead of --requests.")
    ] = None
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64
    temperature: Annotated[float, typer.Option(help="Of the answers.")] = 0.0
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Prompts of a suite; made up if not given.")
    ] = None
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The suite's folder or file.")
    ] = None
    prompts: Annotated[int, typer.Option("--limit", help="Different prompts.")] = 16
    leaving: Annotated[float, typer.Option(help="Share of clients that leave early.")] = 0.0
    invalid: Annotated[float, typer.Option(help="Share of requests that must be refused.")] = 0.0
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the answers to one client alone.")
    ] = False
    pid: Annotated[int | None, typer.Option(help="Of the server, to note its memory.")] = None


@takes_options
def serve(
    *,
    options: ServeOptions,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines; the same command goes on with them."),
    ] = None,
    json: JSON = False,
) -> None:
    """Put a running server under load: throughput, time to the first token, time per token.

    Example: graft bench serve --url http://127.0.0.1:8000 --concurrency 1,8,32 --out serve.jsonl
    """
    from graft.bench.serve.report import as_markdown
    from graft.bench.serve.run import run
    from graft.bench.serve.settings import KEY, SERVE, ServeSettings, concurrencies

    given = asdict(options) | {"concurrency": concurrencies(options.concurrency)}
    given = {name: value for name, value in given.items() if value is not None}
    run_all = partial(run, ServeSettings(**given))
    if not measure_into(out, (SERVE, KEY), run_all, as_markdown, json=json):
        raise typer.Exit(REFUSED)
