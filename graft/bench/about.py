"""Versions, hardware and commit of a run."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import graft
from graft.machine import cpu, memory

PACKAGES = ("torch", "transformers", "tokenizers", "numba", "numpy")


def versions() -> dict[str, str]:
    """Of Python, Graft and the packages it computes with."""
    found = {"python": platform.python_version(), "graft": graft.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Processor, memory and GPUs."""
    import torch

    processor, total = cpu(), memory().total
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": processor.name,
        "cores": processor.cores,
        "features": processor.features,
        "memory_gb": round(total / 1e9, 1) if total else None,
        "gpus": gpus,
        "platform": platform.platform(),
    }


def commit() -> str | None:
    """The commit of the checkout, with "+" for changed files; None when installed."""
    folder = Path(graft.__file__).parents[1]
    if not (folder / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
