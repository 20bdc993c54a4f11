"""From a folder to a draft head that is ready to draft for a target.

Heads that are installed for a model (`shelf.py`) are found by the fingerprint of the weights
they were trained for.
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from graft.models.heads.config import KINDS, sizes_of
from graft.models.heads.eagle_runner import EagleRunner
from graft.models.heads.files import Head, read_head
from graft.models.heads.installed import AUTO_HEAD as AUTO_HEAD
from graft.models.heads.installed import installed_heads
from graft.models.heads.installed import may_have_head as may_have_head
from graft.models.heads.installed import named_head as named_head
from graft.models.heads.layers import Positions
from graft.models.heads.longspec_runner import LongSpecRunner
from graft.models.heads.runner import HeadRunner
from graft.models.language_model import LanguageModel
from graft.models.load import LoadedModel, read_config

RUNNERS = {"eagle2": EagleRunner, "longspec": LongSpecRunner}


def find_heads(name: str | None, target: LoadedModel) -> dict[str, Path]:
    """By its kind the head in the folder of that name; with "auto" those installed for the target,
    one of a kind. CheckpointError where a head cannot be read or belongs to another target."""
    if name is None:
        return {}
    if name != AUTO_HEAD:
        folder = Path(name)
        return {_head_for(target, folder).config.kind: folder}
    found: dict[str, Path] = {}
    for each in installed_heads():
        if each.fingerprint == target.checkpoint.fingerprint:
            found.setdefault(_head_for(target, each.folder).config.kind, each.folder)
    return {kind: found[kind] for kind in KINDS if kind in found}


def load_head(folder: Path, target: LoadedModel) -> HeadRunner:
    """The head in a folder at work; CheckpointError where it belongs to another target."""
    return run_head(_head_for(target, folder), target.model, packed=target.forward_name == "panels")


def _head_for(target: LoadedModel, folder: Path) -> Head:
    config = read_config(target.checkpoint, target.stretched)
    head = read_head(folder, target.checkpoint, config)
    if target.stretched is not None:  # its queries meet the target's keys, or stand as far apart
        sizes = sizes_of(config, target.checkpoint.name)
        turned = {name: sizes[name] for name in ("positions", "rope")}
        head.rotary = Positions(replace(head.config, **turned))
    return head


def run_head(head: Head, model: LanguageModel, *, packed: bool = False) -> HeadRunner:
    """A head at work for a target: a copy of it, whose weights are changed to what work needs."""
    return RUNNERS[head.config.kind](deepcopy(head), model, packed=packed)
