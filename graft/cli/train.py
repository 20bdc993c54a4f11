"""`graft train`: a draft head for a model, from chats and texts."""

import sys
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from graft.cli.failures import INTERRUPTED
from graft.cli.options import takes_options
from graft.train.settings import KINDS, Settings, option_name, options

# One option for each of the trainer's settings, which say themselves what they mean.
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
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{' or '.join(KINDS)}.")],
    *,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILES",
            help="Chats and texts: JSON lines, parquet, documents; files, folders, patterns; again "
            "for more.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The head's; beside it its log.")],
    options: TrainOptions,
) -> None:
    """Train a draft head for a model. Stopped or killed, the same command goes on.

    Example: graft train eagle2 --data chats.jsonl --regenerate 2000 --minutes 10 --out head
    """
    settings = Settings(kind=kind, data=tuple(data), out=out, **asdict(options))
    from graft.train.interrupts import stop_after_step
    from graft.train.run import train as run

    with stop_after_step() as stopping:
        finished = run(settings, _say, stopping)
    _say(f"head: {out}" if finished else "stopped; the same command goes on")
    if not finished:
        raise typer.Exit(INTERRUPTED)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
