"""`python -m graft.bench`: the same as `graft bench`, needing neither typer nor rich nor
matplotlib nor scipy, for machines that have little more than torch and transformers."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

from graft.bench.asked import Asked, check_baseline, default_file
from graft.bench.interrupts import sigterm_interrupts
from graft.bench.lines import Lines
from graft.bench.records import read_results
from graft.bench.report import report
from graft.bench.runner import run
from graft.bench.suites import suite_names
from graft.bench.tables import as_markdown
from graft.errors import GraftError

HELP = {
    "suite": f"of {', '.join(suite_names())}",
    "data": "the suite's folder or file",
    "draft": "presets, such as plain,pld,auto; PRESET@VERIFIER:ETA; rag: a shortened prompt",
    "context": "lengths that long documents are cut to, in tokens, such as 1k,2k,4k",
    "context_length": "of the models, such as 32k; more than their own by YaRN",
    "quality": "where there is gold: answers (the default), or likelihood too",
    "load_options": "JSON: more of graft.load's",
    "split": "report, tune or all",
}
INTERRUPTED = 130


def main() -> int:
    """Measure, print the tables as Markdown; the exit code."""
    chosen = vars(_options().parse_args())
    out, source, baseline = (chosen.pop(name) for name in ("out", "source", "baseline"))
    run_code = chosen.pop("run_code")
    code = 0
    try:
        if source is None:
            settings = Asked(**chosen).settings()
            check_baseline(settings, baseline)
            source = out or default_file(settings)
            with sigterm_interrupts():
                code = 0 if run(settings, source, Lines()) else 1
        told = report(read_results(source), baseline, run_code=run_code)
        sys.stdout.write(f"{as_markdown(told)}\n")
    except GraftError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; the same command goes on ({source})\n")
        return INTERRUPTED
    sys.stderr.write(f"answers: {source}\n")
    return code


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m graft.bench", description=__doc__)
    for each in fields(Asked):
        name, kind = f"--{each.name.replace('_', '-')}", get_args(each.type)[0]
        options.add_argument(name, type=kind, help=HELP.get(each.name))
    options.add_argument("--out", type=Path, help="JSON lines; the same command goes on with them")
    options.add_argument("--from", type=Path, dest="source", help="print these, measure nothing")
    options.add_argument("--run-code", action="store_true", help="run written programs: pass@1")
    options.add_argument("--baseline", help="ratios are against it; plain if measured")
    return options


if __name__ == "__main__":
    sys.exit(main())
