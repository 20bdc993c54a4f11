"""numba's compiled kernels beside the sources, dropped when any source has changed.

numba keeps a kernel as long as the kernel's own file is the same, but compiled code contains the
kernels that it calls, which may stand in other files: after an update in place a step could mix old
and new ones.
"""

import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

FOLDERS = ("kernels", "match", "models", "tree", "draft/copies", "draft/pacing")
STAMP = "compiled-for"


@cache
def drop_stale(root: Path = Path(__file__).parent) -> None:
    """Delete the compiled kernels of a package if they are not those of its sources as they are.
    Folders with kernels call it before numba loads any."""
    with suppress(OSError):  # a package that cannot be written has its kernels elsewhere
        found = hashlib.sha256()
        for folder in FOLDERS:
            for entry in sorted(os.scandir(root / folder), key=lambda each: each.name):
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    text = f"{folder}/{entry.name} {status.st_mtime_ns} {status.st_size}\n"
                    found.update(text.encode())
        stamp = root / "kernels" / "__pycache__" / STAMP
        if stamp.exists() and stamp.read_text("ascii") == found.hexdigest():
            return
        for folder in FOLDERS:
            for kernel in (root / folder / "__pycache__").glob("*.nb[ci]"):
                kernel.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(found.hexdigest(), "ascii")
