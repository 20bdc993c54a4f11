"""`python -m graft.bench.kernels`: the same as `graft bench kernels`, needing neither typer nor
rich nor matplotlib, for machines that have little more than torch."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from graft.bench.kernels.records import Figures, open_journal, read_figures
from graft.bench.kernels.report import as_markdown
from graft.bench.kernels.run import run
from graft.bench.kernels.settings import Asked
from graft.bench.lines import Lines
from graft.errors import GraftError

WHOLE_NUMBERS = ("layers", "repeats")


def main() -> int:
    """Measure, print tables as Markdown; the exit code."""
    options = argparse.ArgumentParser(prog="python -m graft.bench.kernels", description=__doc__)
    for each in fields(Asked):
        kind = int if each.name in WHOLE_NUMBERS else str
        options.add_argument(f"--{each.name}", type=kind, default=each.default)
    options.add_argument("--out", type=Path, help="JSON lines; the same command goes on with them")
    options.add_argument("--from", type=Path, dest="source", help="print these, measure nothing")
    options.add_argument("--plot", type=Path, help="PNG; needs matplotlib")
    chosen = vars(options.parse_args())
    out, source, picture = (chosen.pop(name) for name in ("out", "source", "plot"))
    try:
        found, code = (read_figures(source), 0) if source else _measure(Asked(**chosen), out)
        if found.sessions:
            sys.stdout.write(f"{as_markdown(found)}\n")
        if picture:
            from graft.bench.kernels.plot import plot

            plot(found, picture)
    except GraftError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return code


def _measure(asked: Asked, out: Path | None) -> tuple[Figures, int]:
    """What was measured, also when interrupted."""
    settings = asked.settings()
    with open_journal(out) as journal:
        try:
            run(settings, journal, Lines())
        except KeyboardInterrupt:
            return journal.figures, 130
        return journal.figures, 0


if __name__ == "__main__":
    sys.exit(main())
