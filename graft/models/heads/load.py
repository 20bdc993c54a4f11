"""From a folder to a draft head that is ready to draft for a target.

Installed heads (`installed.py`) are found by the fingerprint of their target's weights, its own MTP
layer in its checkpoint's folder.
"""

import logging
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from graft.errors import CheckpointError, UnsupportedModelError
from graft.models.heads.config import KINDS, sizes_of
from graft.models.heads.eagle_runner import EagleRunner
from graft.models.heads.files import Head, read_head
from graft.models.heads.installed import AUTO_HEAD, head_folder, installed_heads
from graft.models.heads.layers import Positions
from graft.models.heads.longspec_runner import LongSpecRunner
from graft.models.heads.mtp_files import read_mtp
from graft.models.heads.runner import HeadRunner
from graft.models.language_model import LanguageModel
from graft.models.load import LoadedModel, read_config

log = logging.getLogger(__name__)

RUNNERS = dict.fromkeys(KINDS, EagleRunner) | {"longspec": LongSpecRunner}


def find_heads(
    name: str | None, target: LoadedModel, *, needs_mtp: bool = False
) -> dict[str, Path]:
    """The named head's folder by its kind; with "auto" those installed for the target's weights,
    one of each kind, and the target's own MTP layer.

    CheckpointError where a head cannot be read or does not fit the target. An MTP layer that is not
    supported is an error only if `needs_mtp`.
    """
    if name is None:
        return {}
    if name != AUTO_HEAD:
        folder = head_folder(name)
        config = _head_for(target, folder).config
        if config.fingerprint not in ("", target.checkpoint.fingerprint):
            log.warning(
                "%s was trained for other weights (%s): fewer of its drafts may be accepted",
                name, config.target,
            )  # fmt: skip
        return {config.kind: folder}
    found: dict[str, Path] = {}
    for each in installed_heads():
        if each.fingerprint == target.checkpoint.fingerprint:
            found.setdefault(_head_for(target, each.folder).config.kind, each.folder)
    try:
        found[_head_for(target, target.checkpoint.folder).config.kind] = target.checkpoint.folder
    except (CheckpointError, UnsupportedModelError) as error:
        if needs_mtp:
            raise
        log.debug("%s", error)
    return {kind: found[kind] for kind in KINDS if kind in found}


def load_head(folder: Path, target: LoadedModel) -> HeadRunner:
    """The runner of the head in a folder; CheckpointError where it is for another target."""
    return run_head(_head_for(target, folder), target.model, packed=target.forward_name == "panels")


def _head_for(target: LoadedModel, folder: Path) -> Head:
    config = read_config(target.checkpoint, target.stretched)
    if folder.resolve() == target.checkpoint.folder.resolve():
        head: Head = read_mtp(target.checkpoint, config)
    else:
        head = read_head(folder, target.checkpoint, config)
    if target.stretched is not None:  # the head rotates by the target's positions
        sizes = sizes_of(config, target.checkpoint.name)
        turned = {name: sizes[name] for name in ("positions", "rope")}
        head.rotary = Positions(replace(head.config, **turned))
    return head


def run_head(head: Head, model: LanguageModel, *, packed: bool = False) -> HeadRunner:
    """The runner of a copy of the head, whose weights are converted for the target."""
    return RUNNERS[head.config.kind](deepcopy(head), model, packed=packed)
