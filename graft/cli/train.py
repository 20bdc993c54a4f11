"""`graft train`: train a draft head for a model on chats and texts."""

import sys
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from graft.cli.failures import INTERRUPTED
from graft.cli.options import takes_options
from graft.train.settings import ANSWERS, KINDS, Settings, option_name, options

# One option for each of the trainer's settings; their metadata has the help texts.
TrainOptions: Any = make_dataclass(
    "TrainOptions",
    [
        (
            each.name,
            Annotated[each.type, typer.Option(option_name(each.name), help=each.metadata["help"])],
            each.default,
        )
        for each in options()
    ],
    kw_only=True,
)


@takes_options
def train(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=f"{', '.join(KINDS)}, or {ANSWERS}: only generate the data of --regenerate.",
        ),
    ],
    *,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILES",
            help="Chats and texts: JSON lines, parquet, documents; a file, folder or pattern; "
            "repeatable.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the head, its log is written beside it; JSON Lines file of answers.",
        ),
    ],
    options: TrainOptions,
) -> None:
    """Train a draft head for a model. Run the same command again to resume.

    Example: graft train eagle3 --data chats.jsonl --regenerate 2000 --minutes 10 --out head
    """
    settings = Settings(kind=kind, data=tuple(data), out=out, **asdict(options))
    from graft.train.interrupts import stop_after_step
    from graft.train.run import train as run

    with stop_after_step() as stopping:
        finished = run(settings, _say, stopping)
    made = "answers" if kind == ANSWERS else "head"
    _say(f"{made}: {out}" if finished else "stopped; run the same command again to resume")
    if not finished:
        raise typer.Exit(INTERRUPTED)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
