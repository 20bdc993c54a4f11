"""`graft bench peers`: every other engine that is installed, on the same prompts as Graft."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from graft.cli.bench import (
    BASELINE,
    JSON,
    MARKDOWN,
    PEER_PYTHON,
    BenchOptions,
    load_report,
    measure,
    say,
    show,
)
from graft.cli.failures import REFUSED
from graft.cli.options import takes_options


@takes_options
def peers(
    *,
    options: BenchOptions,
    peer_python: PEER_PYTHON = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines; the same command goes on with them."),
    ] = None,
    baseline: BASELINE = None,
    markdown: MARKDOWN = False,
    json: JSON = False,
) -> None:
    """Measure Graft and every peer that is installed: same prompts, weights, dtype and length.

    Peers that cannot run are named in a line each. Their answers are compared with Graft's plain
    ones, and what each ran with stands below the tables and in the file.

    Example: graft bench peers --data SPEC_BENCH --dtype fp32 --peer-python vllm=VLLM/bin/python
    """
    from graft.bench import tables
    from graft.bench.asked import Asked, check_baseline, default_file
    from graft.bench.installed import choose, interpreters
    from graft.bench.runner import run

    asked, left_out = choose(Asked(**asdict(options)), interpreters(peer_python or []))
    for line in left_out:
        say(line)
    settings = asked.settings()
    check_baseline(settings, baseline)
    default = default_file(settings)
    file = out or default.with_name(f"peers-{default.name}")
    complete = measure(partial(run, settings), file)
    told = load_report(file, baseline, run_code=False)
    show(told, tables, markdown=markdown, json=json)
    if not (markdown or json):
        _show_settings(told)
    say(f"answers: {file}")
    if not complete:
        raise typer.Exit(REFUSED)


def _show_settings(told: object) -> None:
    from graft.bench.tables import settings_rows

    for name, versions, settings in settings_rows(told):
        print(f"{name}: {versions}; {settings}")
