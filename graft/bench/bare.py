"""What commands share that need neither typer nor rich: options, errors in one line, exit codes."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_args

from graft.bench.interrupts import sigterm_interrupts
from graft.errors import GraftError

FAILED, INTERRUPTED = 1, 130


def add_fields(
    parser: argparse.ArgumentParser, asked: type, helps: Mapping[str, str] | None = None
) -> None:
    """An option for every field of a dataclass whose types are all `X | None`."""
    for each in fields(asked):
        name, kind = f"--{each.name.replace('_', '-')}", get_args(each.type)[0]
        taken = {"action": "store_true", "default": None} if kind is bool else {"type": kind}
        parser.add_argument(name, help=(helps or {}).get(each.name), **taken)


def exit_code(command: Callable[[], bool], where: Callable[[], Path | None]) -> int:
    """Run a command that says whether everything could be done; `where` is the file it goes on
    with, once that is known."""
    try:
        with sigterm_interrupts():
            return 0 if command() else FAILED
    except GraftError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; the same command goes on ({where()})\n")
        return INTERRUPTED
