"""How suites run that keep a journal: figures on disk at once, all of them shown in the end."""

import json as json_module
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from graft.cli.bench import Progress, say, stopped

if TYPE_CHECKING:
    from graft.bench.journal import Journal

Outcome = TypeVar("Outcome")


def measure_into(
    out: Path | None,
    suite: tuple[str, tuple[str, ...]],
    run: "Callable[[Journal, Progress], Outcome]",
    as_markdown: "Callable[[Journal], str]",
    *,
    json: bool,
) -> Outcome:
    """What `run` returns; Ctrl-C or SIGTERM keep and show what there is, and say how to go on.
    A `suite` is what its files are called inside, and what makes a line of them unique."""
    from graft.bench.interrupts import sigterm_interrupts
    from graft.bench.journal import open_journal

    outcome, complete = None, True
    with sigterm_interrupts(), open_journal(out, *suite) as journal:
        try:
            with Progress() as progress:
                outcome = run(journal, progress)
        except KeyboardInterrupt:
            complete = False
    if journal.rows:
        print(json_module.dumps(journal.rows) if json else as_markdown(journal))
    if out is not None:
        say(f"figures: {out}")
    if not complete:
        raise stopped(out)
    return outcome
