"""The checkpoint of a run, one file replaced atomically: weights, optimizer moments, progress.

The order of data, noise and offsets depend only on the seed and the step's number, so a resumed run
is the same bit for bit.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from graft.errors import CheckpointError, InputError
from graft.home import atomic_file
from graft.train.settings import Settings, option_name, options

FILE = "state.pt"
UNREADABLE = (EOFError, LookupError, OSError, RuntimeError, TypeError, UnpicklingError, ValueError)


@dataclass(slots=True)
class Progress:
    """Steps, their seconds, and the last measurement on held-out rows."""

    step: int = 0
    elapsed: float = 0.0
    tokens_per_step: float | None = None
    accepted: list[float] = field(default_factory=list)  # of held-out chains, by depth


def save_state(
    settings: Settings, head: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Save a checkpoint; if the process is killed, the previous one remains."""
    state = {
        "settings": settings.identity(),
        "progress": asdict(progress),
        "head": head.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    weights = sum(value.nbytes for value in head.state_dict().values())
    with atomic_file(settings.work / FILE, needed=3 * weights) as file:  # and AdamW's two moments
        torch.save(state, file)


def load_state(settings: Settings, head: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Load the checkpoint, if there is one, into head and optimizer."""
    path = settings.work / FILE
    if not path.is_file():
        return Progress()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        _check_same(settings, state["settings"], path)
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        return Progress(**state["progress"])
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} cannot be read ({reason}); delete it to start again"
        ) from error


def _check_same(settings: Settings, before: dict[str, Any], path: Path) -> None:
    """Raise InputError if settings differ; options newer than the checkpoint had their default."""
    before = {each.name: each.default for each in options()} | before
    for name, value in settings.identity().items():
        if before.get(name) != value:
            raise InputError(
                f"{path.parent} was started with {option_name(name)} {before.get(name)}, "
                f"not {value}; choose another --out or delete that folder"
            )
