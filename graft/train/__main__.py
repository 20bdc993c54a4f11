"""`python -m graft.train KIND --data FILES --out FOLDER`: `graft train` without typer and rich."""

import argparse
import sys
from dataclasses import Field
from pathlib import Path

from graft.errors import GraftError
from graft.train.interrupts import stop_after_step
from graft.train.settings import KINDS, Settings, option_name, options

INTERRUPTED = 130


def main() -> int:
    """Train, and return the exit code."""
    chosen = vars(_options().parse_args())
    try:
        settings = Settings(**chosen | {"data": tuple(chosen["data"])})
        from graft.train.run import train

        with stop_after_step() as stopping:
            finished = train(settings, _say, stopping)
    except GraftError as error:
        _say(f"error: {' '.join(str(error).split())}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; run it again to resume from the last checkpoint")
        return INTERRUPTED
    _say(f"head: {settings.out}" if finished else "stopped; run it again to resume")
    return 0 if finished else INTERRUPTED


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m graft.train", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data", nargs="+", action="extend", required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    for each in options():
        _add(parser, each)
    return parser


def _add(parser: argparse.ArgumentParser, each: Field) -> None:
    options = {"help": each.metadata["help"], "default": each.default}
    if each.type is bool:
        parser.add_argument(option_name(each.name), action="store_true", **options)
    else:
        kind = Path if each.default is None else each.type
        parser.add_argument(option_name(each.name), type=kind, **options)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
