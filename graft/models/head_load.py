"""From a folder to a draft head that is ready to draft for a target."""

from pathlib import Path

from graft.models.eagle_runner import EagleRunner
from graft.models.head_files import Head, read_head
from graft.models.head_runner import HeadRunner
from graft.models.language_model import LanguageModel
from graft.models.load import LoadedModel, read_config
from graft.models.longspec_runner import LongSpecRunner

RUNNERS = {"eagle2": EagleRunner, "longspec": LongSpecRunner}


def load_head(folder: Path, target: LoadedModel) -> HeadRunner:
    """The head in a folder; CheckpointError where it belongs to another target."""
    head = read_head(folder, target.checkpoint, read_config(target.checkpoint))
    return run_head(head, target.model, packed=target.forward_name == "panels")


def run_head(head: Head, model: LanguageModel, *, packed: bool = False) -> HeadRunner:
    """A head at work for a target."""
    return RUNNERS[head.config.kind](head, model, packed=packed)
