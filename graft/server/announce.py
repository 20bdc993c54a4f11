"""Running servers of this machine: one file for each in Graft's folder, for `graft run`.

Imports neither torch nor the server.
"""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graft.home import atomic_file, home


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where a server listens, its model, and the `options` that a client must have as well to get
    the same answers. `instance` is random and part of `/health`."""

    url: str
    pid: int
    machine: str
    instance: str
    version: str
    fingerprint: str
    model_name: str
    context_length: int
    needs_key: bool
    options: dict[str, Any]

    @property
    def file(self) -> Path:
        """The file of this server."""
        return _folder() / f"{self.machine}-{self.pid}.json"


def announce(server: RunningServer) -> None:
    """Write the server's file."""
    with atomic_file(server.file) as temporary:
        temporary.write_text(json.dumps(asdict(server)), encoding="utf-8")


def withdraw(server: RunningServer) -> None:
    """Remove the server's file; may be called again."""
    server.file.unlink(missing_ok=True)


def running_servers() -> Iterator[RunningServer]:
    """Those whose process lives; files of others on this machine are removed."""
    for file in sorted(_folder().glob(f"{platform.node()}-*.json")):
        try:
            server = RunningServer(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # gone meanwhile, or of another version
            continue
        if _lives(server.pid):
            yield server
        else:
            withdraw(server)


def _folder() -> Path:
    return home() / "servers"


def _lives(pid: int) -> bool:
    if os.name == "nt":  # there, signal 0 is not a question
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
