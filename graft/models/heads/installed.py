"""Draft heads that are installed, in the user's folder or in the package: read without torch."""

import json
from dataclasses import dataclass
from pathlib import Path

from graft.errors import CheckpointError
from graft.home import folder_size, home

IN_PACKAGE = Path(__file__).parents[2] / "heads"
AUTO_HEAD = "auto"  # the head installed for the target, if there is one
CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class InstalledHead:
    """A head's folder, the target it says it belongs to, and how many of its layers it looks at."""

    folder: Path
    target: str
    fingerprint: str
    size: int
    cross_layers: int

    @property
    def name(self) -> str:
        """What its folder is called."""
        return self.folder.name


def installed_heads() -> list[InstalledHead]:
    """The user's own first; folders that do not say whose head they hold are left out."""
    places = (home() / "heads", IN_PACKAGE)
    found = [_head(file) for place in places for file in sorted(place.glob(f"*/{CONFIG}"))]
    return [each for each in found if each]


def named_head(option: str) -> str | None:
    """The head that `--head` names: a folder, "auto", or None for "none"."""
    return None if option == "none" else option


def may_have_head(name: str | None) -> bool:
    """Whether a head is named or installed; CheckpointError for a named one that does not exist."""
    if name is None or name == AUTO_HEAD:
        return name is not None and bool(installed_heads())
    if not (Path(name) / CONFIG).is_file():
        raise CheckpointError(f"{name} is not a draft head's folder: it has no {CONFIG}")
    return True


def _head(config: Path) -> InstalledHead | None:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        fingerprint = content["graft"]["fingerprint"]
        target = content["speculators_config"]["verifier"]["name_or_path"]
        layers = content["graft"].get("cross_layers", 1)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return InstalledHead(config.parent, target, fingerprint, folder_size(config.parent), layers)
