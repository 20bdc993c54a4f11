"""The command `graft`. Commands import torch when they run, so `graft --help` is fast."""

import atexit
import gc
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from graft.cli.ask import ask
from graft.cli.bench import bench
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
from graft.machine import SHORT_SPINS

# Plain help: importing rich would take most of the time of --help.
app = typer.Typer(
    name="graft",
    help="Lossless speculative decoding: answers from documents, several times faster.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
for command in (run, chat, ask, serve, train, bench, simulate, models, cache, doctor):
    app.command()(fails_in_one_line(command))
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
    """Options of `graft` itself; --version has a callback."""


def main() -> None:
    """Entry point of the `graft` script."""
    # A character that the terminal cannot show becomes a question mark instead of an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    # torch's OpenMP reads it when torch is imported; see `forward_panels.use_threads`.
    os.environ.setdefault(*SHORT_SPINS)
    # Imports make some 400,000 objects that stay: the collector's usual 570 runs until a model is
    # loaded find nothing and take a tenth of the time, and another one at exit half a second.
    gc.set_threshold(100_000)
    atexit.register(_hide_leaks)
    try:
        app()
    finally:
        gc.freeze()


def _hide_leaks() -> None:
    """Close stderr for the end of the process: triton's binding prints forty lines about objects
    that are not collected there."""
    if any(name.startswith("triton") for name in sys.modules):
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
