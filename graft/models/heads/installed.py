"""Where draft heads are found: in the user's folder, in the package, on the hub; does not import
torch."""

import json
from dataclasses import dataclass
from pathlib import Path

from graft.errors import CheckpointError
from graft.home import folder_size, home
from graft.models.checkpoints.fetch import fetch_head
from graft.models.checkpoints.pretrained import HUB_ID

IN_PACKAGE = Path(__file__).parents[2] / "heads"
AUTO_HEAD = "auto"  # the head installed for the target or in its checkpoint, if there is one
CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class InstalledHead:
    """A head's folder, its target, and the number of the target's layers it attends to."""

    folder: Path
    target: str
    fingerprint: str
    size: int
    cross_layers: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name


def installed_heads() -> list[InstalledHead]:
    """The user's own first; folders that name no target are left out."""
    found = [_head(file) for place in _places() for file in sorted(place.glob(f"*/{CONFIG}"))]
    return [each for each in found if each]


def head_folder(name: str) -> Path:
    """A head by the rule of models: its folder, the name of an installed one, or a hub id, fetched
    if it is not cached. CheckpointError for others."""
    path = Path(name).expanduser()
    places = [path, *(place / name for place in _places() if path.name == name)]
    for place in places:
        if (place / CONFIG).is_file():
            return place
    if HUB_ID.fullmatch(name) and not path.exists():
        return fetch_head(name)
    raise CheckpointError(
        f"{name} is not a draft head: give a folder with {CONFIG}, an installed head "
        "(`graft models`) or a hub id (org/head)"
    )


def _places() -> tuple[Path, Path]:
    return home() / "heads", IN_PACKAGE


def named_head(option: str) -> str | None:
    """The head that `--head` names: a folder, a name, "auto", or None for "none"."""
    return None if option == "none" else option


def may_have_head(name: str | None) -> bool:
    """Whether a head is named, or may be installed or in the model's checkpoint; CheckpointError
    for a named one that does not exist."""
    if name is None or name == AUTO_HEAD:
        return name is not None
    return head_folder(name).is_dir()


def _head(config: Path) -> InstalledHead | None:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        fingerprint = content["graft"]["fingerprint"]
        target = content["speculators_config"]["verifier"]["name_or_path"]
        layers = content["graft"].get("cross_layers", 1)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return InstalledHead(config.parent, target, fingerprint, folder_size(config.parent), layers)
