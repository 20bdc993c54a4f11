"""The command `graft`. Nothing slow is imported here: `graft --help` answers at once."""

import os
import sys
from typing import Annotated

import typer

from graft.cli.ask import ask
from graft.cli.bench import app as bench
from graft.cli.bench_index import index as bench_index
from graft.cli.bench_kernels import kernels
from graft.cli.bench_peers import peers
from graft.cli.bench_serve import serve as bench_serve
from graft.cli.bench_trace import trace
from graft.cli.cache import cache
from graft.cli.chat import chat
from graft.cli.doctor import doctor, package_version
from graft.cli.failures import fails_in_one_line
from graft.cli.index import app as index
from graft.cli.models import models
from graft.cli.run import run
from graft.cli.serve import serve
from graft.cli.simulate import simulate
from graft.cli.train import train

# Plain help: formatting it with rich would take longer than everything else together.
app = typer.Typer(
    name="graft",
    help="Language models answer from documents several times faster, token for token the same.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for command in (run, chat, ask, serve, train, simulate, models, cache, doctor):
    app.command()(fails_in_one_line(command))
for suite in (kernels, bench_index, bench_serve, peers, trace):
    bench.command()(fails_in_one_line(suite))
app.add_typer(bench, name="bench")
app.add_typer(index, name="index")


def _print_version(value: bool) -> None:  # noqa: FBT001 (typer's callback signature)
    if value:
        print(f"graft {package_version('graftlm') or '(not installed)'}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version)
    ] = False,
) -> None:
    """Options of `graft` itself; the callback of --version does the work."""


def main() -> None:
    """Entry point of the `graft` script."""
    # A terminal that cannot show a character gets a question mark, not a failure mid-answer.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
    # torch's OpenMP reads it when torch is imported; see `forward_panels.use_threads`.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    app()
