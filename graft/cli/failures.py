"""How a command fails: one line on stderr and an exit code, never a page of traceback."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from graft.errors import GraftError

REFUSED, INTERNAL, INTERRUPTED, BROKEN_PIPE = 1, 70, 130, 141


def fails_in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that whatever it raises ends as one line and an exit code."""

    @wraps(command)
    def guarded(*args: Any, **options: Any) -> None:  # noqa: ANN401 (whatever the command takes)
        try:
            command(*args, **options)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except BrokenPipeError:
            # The reader went away; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except GraftError as error:
            _say(f"error: {one_line(error)}")
            raise typer.Exit(REFUSED) from None
        except Exception as error:
            if os.environ.get("GRAFT_DEBUG") == "1":
                raise
            _say(
                f"internal error: {type(error).__name__}: {one_line(error)}; "
                "set GRAFT_DEBUG=1 for the traceback"
            )
            raise typer.Exit(INTERNAL) from None

    return guarded


def one_line(error: Exception) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())


def _say(line: str) -> None:
    print(line, file=sys.stderr)
