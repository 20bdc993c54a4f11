"""What transformers found in a checkpoint, kept on disk, so that later loads do not import it.

Two things are kept, both under the digests of all that they depend on:
- of a checkpoint's small files: its config as transformers understands it, and its tokenizer;
- that a forward agreed with transformers' own network (`probe.py`), for these weights, this code
  and this processor.
"""

import contextlib
import hashlib
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers

from graft.errors import CheckpointError
from graft.home import atomic_file, atomic_folder, home
from graft.models.checkpoints.folder import file_sha256
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.checkpoints.tokenizer import Tokenizer, TokenizerSettings, serialised

FORMAT = "1"  # of the files written here
SMALL_FILES = (".json", ".jinja", ".model", ".txt")
CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_settings.json"


class StoredConfig(SimpleNamespace):
    """A text model's config with transformers' names."""

    def get_text_config(self) -> "StoredConfig":
        """Itself, as transformers' configs of text models give it."""
        return self


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A checkpoint's config and tokenizer."""

    config: StoredConfig
    tokenizer: Tokenizer


def record_of(config: Any, tokenizer: Tokenizer) -> LoadRecord:  # noqa: ANN401
    """A record of transformers' config, as `read_record` gives it."""
    return LoadRecord(StoredConfig(**json.loads(json.dumps(config.to_dict()))), tokenizer)


def write_record(checkpoint: Checkpoint, record: LoadRecord) -> None:
    """Keep it; where nothing can be written, the next load imports transformers again."""
    backend = serialised(record.tokenizer)
    with contextlib.suppress(CheckpointError), atomic_folder(_folder(checkpoint)) as folder:
        (folder / CONFIG).write_text(json.dumps(vars(record.config)), encoding="utf-8")
        (folder / TOKENIZER).write_text(backend, encoding="utf-8")
        settings = json.dumps(asdict(record.tokenizer.settings))
        (folder / SETTINGS).write_text(settings, encoding="utf-8")


def read_record(checkpoint: Checkpoint) -> LoadRecord | None:
    """The record of a checkpoint whose files are as they were; None where there is none."""
    config, folder = read_stored_config(checkpoint), _folder(checkpoint)
    if config is None:
        return None
    try:
        settings = TokenizerSettings(**json.loads((folder / SETTINGS).read_text("utf-8")))
        backend = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception:  # not there or damaged; tokenizers raises nothing more special
        return None
    return LoadRecord(config, Tokenizer(backend, settings))


def read_stored_config(checkpoint: Checkpoint) -> StoredConfig | None:
    """The record's config alone."""
    try:
        return StoredConfig(**json.loads((_folder(checkpoint) / CONFIG).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_verified(checkpoint: Checkpoint, *facts: str) -> bool:
    """Whether a forward with these facts (its kind, dtype, ...) is known to agree."""
    return _verdict(checkpoint, facts).is_file()


def set_verified(checkpoint: Checkpoint, *facts: str) -> None:
    """Keep that it agreed."""
    with (
        contextlib.suppress(CheckpointError),
        atomic_file(_verdict(checkpoint, facts)) as temporary,
    ):
        temporary.write_text(json.dumps([checkpoint.name, *facts]), encoding="utf-8")


def _folder(checkpoint: Checkpoint) -> Path:
    key = _digest([FORMAT, *_versions(), _small_files(checkpoint.folder)])
    return home() / "checkpoints" / key


def _verdict(checkpoint: Checkpoint, facts: Iterable[str]) -> Path:
    config = (checkpoint.folder / "config.json").read_text("utf-8")
    machine = (platform.machine(), platform.processor(), platform.node())
    parts = [checkpoint.fingerprint, config, *facts, *machine, *_versions(), _code()]
    return home() / "verified" / f"{_digest(parts)}.json"


def _versions() -> list[str]:
    return [version(name) for name in ("torch", "transformers", "tokenizers", "numba")]


def _small_files(folder: Path) -> str:
    """Digest of all files of a checkpoint but its weights."""
    places = (folder, folder / "additional_chat_templates")
    found = [file for place in places if place.is_dir() for file in sorted(place.iterdir())]
    files = [file for file in found if file.suffix in SMALL_FILES]
    return _digest([f"{file.relative_to(folder)} {file_sha256(file)}" for file in files])


@cache
def _code() -> str:
    """Digest of the code that a forward runs: a change of it must be verified again."""
    own = Path(__file__).parent
    folders = (own, own.parent / "kernels")
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return _digest([file.read_text("utf-8") for file in files])


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
