"""`python -m graft.bench.rag`: the same as `graft bench --suite rag`, needing neither typer nor
rich nor scipy, for machines that have little more than torch and transformers."""

import argparse
import sys
from pathlib import Path

from graft.bench.bare import add_fields, exit_code
from graft.bench.lines import Lines
from graft.bench.rag.asked import RagAsked, check_baseline
from graft.bench.rag.records import read_rag_results
from graft.bench.rag.report import report
from graft.bench.rag.run import run
from graft.bench.rag.tables import as_markdown


def main() -> int:
    """Measure, print the tables as Markdown; the exit code."""
    chosen = vars(_options().parse_args())
    out, baseline = chosen.pop("out"), chosen.pop("baseline")

    def measured() -> bool:
        settings = RagAsked(**chosen).settings()
        check_baseline(settings, baseline)
        complete = run(settings, out, Lines())
        sys.stdout.write(f"{as_markdown(report(read_rag_results(out), baseline))}\n")
        return complete

    return exit_code(measured, lambda: out)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m graft.bench.rag", description=__doc__)
    add_fields(options, RagAsked)
    options.add_argument("--out", type=Path, default=Path("results/rag.jsonl"))
    options.add_argument("--baseline", help="ratios are against it; the first way")
    return options


if __name__ == "__main__":
    sys.exit(main())
