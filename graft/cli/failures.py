"""Errors of a command: one line on stderr and an exit code, no traceback."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from graft.errors import GraftError

REFUSED, INTERNAL, INTERRUPTED, BROKEN_PIPE = 1, 70, 130, 141


def fails_in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that every exception becomes one line and an exit code."""

    @wraps(command)
    def guarded(*args: Any, **options: Any) -> None:  # noqa: ANN401 (those of the command)
        try:
            command(*args, **options)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except BrokenPipeError:
            # The pipe is closed; without this Python fails again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except GraftError as error:
            print(f"error: {one_line(error)}", file=sys.stderr)
            raise typer.Exit(REFUSED) from None
        except Exception as error:
            if os.environ.get("GRAFT_DEBUG") == "1":
                raise
            print(
                f"internal error: {type(error).__name__}: {one_line(error)}; "
                "set GRAFT_DEBUG=1 for the traceback",
                file=sys.stderr,
            )
            raise typer.Exit(INTERNAL) from None

    return guarded


def one_line(error: Exception) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())
