"""`python -m graft.bench.rag`: the same as `graft bench --suite rag`, needing neither typer nor
rich nor scipy, for machines that have little more than torch and transformers."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

from graft.bench.interrupts import sigterm_interrupts
from graft.bench.lines import Lines
from graft.bench.rag.asked import RagAsked
from graft.bench.rag.records import read_rag_results
from graft.bench.rag.report import report
from graft.bench.rag.run import run
from graft.bench.rag.tables import as_markdown
from graft.errors import GraftError

INTERRUPTED = 130


def main() -> int:
    """Measure, print the tables as Markdown; the exit code."""
    chosen = vars(_options().parse_args())
    out, baseline = chosen.pop("out"), chosen.pop("baseline")
    try:
        with sigterm_interrupts():
            complete = run(RagAsked(**chosen).settings(), out, Lines())
        sys.stdout.write(f"{as_markdown(report(read_rag_results(out), baseline))}\n")
    except GraftError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; the same command goes on ({out})\n")
        return INTERRUPTED
    return 0 if complete else 1


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m graft.bench.rag", description=__doc__)
    for each in fields(RagAsked):
        options.add_argument(f"--{each.name.replace('_', '-')}", type=get_args(each.type)[0])
    options.add_argument("--out", type=Path, default=Path("results/rag.jsonl"))
    options.add_argument("--baseline", help="ratios are against it; the first way")
    return options


if __name__ == "__main__":
    sys.exit(main())
