"""`python -m graft.train KIND --data FILES... --out FOLDER`: the same as `graft train`, needing
neither typer nor rich, for machines that have little more than torch and transformers."""

import argparse
import sys
from dataclasses import Field
from pathlib import Path

from graft.errors import GraftError
from graft.train.interrupts import stops_gently
from graft.train.settings import KINDS, Settings, options, spelled

INTERRUPTED = 130


def main() -> int:
    """Train; the exit code."""
    chosen = vars(_options().parse_args())
    try:
        settings = Settings(**chosen | {"data": tuple(chosen["data"])})
        from graft.train.run import train

        with stops_gently() as stopping:
            finished = train(settings, _say, stopping)
    except GraftError as error:
        _say(f"error: {' '.join(str(error).split())}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on after the last checkpoint")
        return INTERRUPTED
    _say(f"head: {settings.out}" if finished else "stopped; the same command goes on")
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
    shown = {"help": each.metadata["help"], "default": each.default}
    if each.type is bool:
        parser.add_argument(spelled(each.name), action="store_true", **shown)
    else:
        kind = Path if each.default is None else each.type
        parser.add_argument(spelled(each.name), type=kind, **shown)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
