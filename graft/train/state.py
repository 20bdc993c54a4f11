"""A run's state in one file, replaced whole: weights, the optimizer's moments, how far it is.

Order of data, noise and offsets follow from the seed and the step's number, so nothing else need be
kept for the next step to be the same, bit for bit.
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
from graft.train.settings import Settings, options, spelled

FILE = "state.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW


@dataclass(slots=True)
class Progress:
    """Steps made, seconds they took, and what was last measured on held-out rows."""

    step: int = 0
    elapsed: float = 0.0
    tokens_per_step: float | None = None
    accepted: list[float] = field(default_factory=list)  # of held-out chains, by depth


def save_state(
    settings: Settings, head: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Killed meanwhile, the state before stays."""
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
    """Where the run was, its weights and moments put in place; a new run's beginning else."""
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
            f"{path} cannot be read ({reason}); delete it to begin anew"
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
    """What a run did not know yet when it was begun was as it is by default."""
    before = {each.name: each.default for each in options()} | before
    for name, value in settings.identity().items():
        if before.get(name) != value:
            raise InputError(
                f"{path.parent} was begun with {spelled(name)} {before.get(name)}, not {value}; "
                "name another --out or delete that folder"
            )
