"""`python -m graft.bench`: the same as `graft bench`, needing neither typer nor rich nor
matplotlib nor scipy, for machines that have little more than torch and transformers."""

import argparse
import sys
from pathlib import Path

from graft.bench.asked import Asked, check_baseline, default_file
from graft.bench.bare import add_fields, exit_code
from graft.bench.lines import Lines
from graft.bench.records import read_results
from graft.bench.report import report
from graft.bench.runner import run
from graft.bench.suites import suite_names
from graft.bench.tables import as_markdown

HELP = {
    "suite": f"of {', '.join(suite_names())}",
    "data": "the suite's folder or file",
    "draft": "presets, such as plain,pld,auto; PRESET@VERIFIER:ETA; rag: a shortened prompt",
    "context": "lengths that long documents are cut to, in tokens, such as 1k,2k,4k",
    "context_length": "of the models, such as 32k; more than their own by YaRN",
    "rehearsals": "of every answer before it is measured: prompts are known then, drafters' too",
    "ignore_eos": "every answer is --max-tokens long, so that batches stay full",
    "quality": "where there is gold: answers (the default), or likelihood too",
    "load_options": "JSON: more of graft.load's",
    "split": "report, tune or all",
}


def main() -> int:
    """Measure, print the tables as Markdown; the exit code."""
    chosen = vars(_options().parse_args())
    out, source, baseline = (chosen.pop(name) for name in ("out", "source", "baseline"))
    run_code = chosen.pop("run_code")
    file = source or out

    def measured() -> bool:
        nonlocal file
        complete = True
        if source is None:
            settings = Asked(**chosen).settings()
            check_baseline(settings, baseline)
            file = out or default_file(settings)
            complete = run(settings, file, Lines())
        told = report(read_results(file), baseline, run_code=run_code)
        sys.stdout.write(f"{as_markdown(told)}\n")
        sys.stderr.write(f"answers: {file}\n")
        return complete

    return exit_code(measured, lambda: file)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m graft.bench", description=__doc__)
    add_fields(options, Asked, HELP)
    options.add_argument("--out", type=Path, help="JSON lines; the same command goes on with them")
    options.add_argument("--from", type=Path, dest="source", help="print these, measure nothing")
    options.add_argument("--run-code", action="store_true", help="run written programs: pass@1")
    options.add_argument("--baseline", help="ratios are against it; plain if measured")
    return options


if __name__ == "__main__":
    sys.exit(main())
