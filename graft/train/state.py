"""The checkpoint of a run, one file replaced atomically: weights, optimizer moments, progress.

The order of data, noise and offsets depend only on the seed and the step's number, so a resumed run
is the same bit for bit.
"""

import json
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from graft.errors import CheckpointError, InputError
from graft.home import atomic_file
from graft.train.settings import Settings, option_name, options

FILE = "state.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW


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
    tensors = {f"head.{name}": value for name, value in head.state_dict().items()}
    for name, parameter in head.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    about = {
        "settings": json.dumps(settings.identity()),
        "progress": json.dumps(astuple(progress)),
    }
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_file(settings.work / FILE, needed=sum(t.nbytes for t in whole.values())) as file:
        save_file(whole, file, metadata=about)


def load_state(settings: Settings, head: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Load the checkpoint, if there is one, into head and optimizer."""
    path = settings.work / FILE
    if not path.is_file():
        return Progress()
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        _check_same(settings, json.loads(about["settings"]), path)
        progress = Progress(*json.loads(about["progress"]))
        _put(tensors, head, optimizer)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(
            f"{path} cannot be read ({reason}); delete it to start again"
        ) from error
    return progress


def _put(tensors: dict[str, Tensor], head: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    head.load_state_dict({n[5:]: value for n, value in tensors.items() if n.startswith("head.")})
    for name, parameter in head.named_parameters():
        if f"step.{name}" in tensors:
            state = {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
            for moment in MOMENTS[1:]:
                state[moment] = state[moment].to(parameter.device)
            optimizer.state[parameter] = state


def _check_same(settings: Settings, before: dict[str, Any], path: Path) -> None:
    """Raise InputError if settings differ; options newer than the checkpoint had their default."""
    before = {each.name: each.default for each in options()} | before
    for name, value in settings.identity().items():
        if before.get(name) != value:
            raise InputError(
                f"{path.parent} was started with {option_name(name)} {before.get(name)}, "
                f"not {value}; choose another --out or delete that folder"
            )
