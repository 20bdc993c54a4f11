"""`python -m benchmarks`: one command per kind of measurement, and the reports of their files.

decode      presets and engines on a suite      kernels   attention kernels, whole steps
rag         adaptive retrieval                   serve     load on an OpenAI server
index       lookup indexes                       trace     drafts of a network, for simulation
simulate    recorded outputs replayed through traced drafts
warm        answers of a suite replayed with a pool that fills
report FILE...              tables as Markdown
page FILE... --out HTML     one page with tables and figures
remeasure FILE --out FILE   run the command of a file again
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.options import parse
from benchmarks.progress import Lines
from benchmarks.report import report, report_of
from benchmarks.script import FAILED, ended
from graft.bench.result_file import open_results, read_results
from graft.errors import InputError

KINDS = ("decode", "kernels", "rag", "serve", "index")


def main(arguments: Sequence[str]) -> int:
    """Run a command; the exit code."""
    commands = {
        "report": _report,
        "page": _page,
        "remeasure": _remeasure,
        "trace": _trace,
        "simulate": _simulate,
        "warm": _warm,
    }
    name, *rest = arguments or ["--help"]
    if name in KINDS:
        return ended(lambda: measure(name, rest))
    if name in commands:
        return ended(lambda: commands[name](rest))
    sys.stdout.write(__doc__)
    return 0 if name in ("-h", "--help") else FAILED


def measure(kind: str, arguments: Sequence[str]) -> int:
    """Measure what the file of the options does not have yet, then print its report."""
    module = import_module(f"benchmarks.{kind}.run")
    settings = parse(module.SETTINGS, arguments, f"python -m benchmarks {kind}")
    with open_results(settings.out) as file:
        complete = module.run(settings, file, Lines())
        if file.results.rows:
            sys.stdout.write(f"{report_of(file.results).as_markdown()}\n")
    return 0 if complete else FAILED


def _files(arguments: Sequence[str], *, out: bool) -> tuple[list[Path], Path | None]:
    parser = argparse.ArgumentParser(description="Reports of result files.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=out)
    chosen = parser.parse_args(arguments)
    return chosen.files, chosen.out


def _report(arguments: Sequence[str]) -> int:
    files, _ = _files(arguments, out=False)
    for path in files:
        found = report(path)
        sys.stdout.write(f"## {found.title}\n\n{found.as_markdown()}\n\n")
    return 0


def _page(arguments: Sequence[str]) -> int:
    from benchmarks.page import write_page

    files, out = _files(arguments, out=True)
    write_page([report(path) for path in files], out)
    return 0


def _remeasure(arguments: Sequence[str]) -> int:
    """Run the commands of a file's headers again, into another file."""
    [path], out = _files(arguments, out=True)
    if out.exists():
        raise InputError(f"{out} exists; choose another --out")
    codes = []
    for header in read_results(path).headers:
        if not header.command or header.command[0] not in KINDS:
            raise InputError(f"{path} has no command of python -m benchmarks in its header")
        kind, *given = header.command
        codes.append(measure(kind, [*without_out(given), "--out", str(out)]))
    return max(codes)


def without_out(arguments: Sequence[str]) -> list[str]:
    """A command line without its --out."""
    found = list(arguments)
    if "--out" in found:
        at = found.index("--out")
        del found[at : at + 2]
    return [each for each in found if not each.startswith("--out=")]


def _trace(arguments: Sequence[str]) -> int:
    from benchmarks.decode.trace import TraceSettings, trace

    trace(parse(TraceSettings, arguments, "python -m benchmarks trace"))
    return 0


def _simulate(arguments: Sequence[str]) -> int:
    from benchmarks.decode.simulate import SimulateSettings, simulate_traces

    simulate_traces(parse(SimulateSettings, arguments, "python -m benchmarks simulate"))
    return 0


def _warm(arguments: Sequence[str]) -> int:
    from benchmarks.decode.warm import WarmSettings, main

    main(parse(WarmSettings, arguments, "python -m benchmarks warm"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
