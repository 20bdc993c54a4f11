"""Graft's folder of converted models, measurements and caches, and atomic writes to it."""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from graft.errors import CheckpointError

TEMPORARY = ".tmp-"
REPLACED = ".old-"
DAY = 24 * 3600
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def home() -> Path:
    """$GRAFT_HOME, or the user's cache folder; it need not exist yet."""
    if chosen := os.environ.get("GRAFT_HOME"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("graft"))


@contextlib.contextmanager
def atomic_file(path: Path, *, needed: int = 0) -> Iterator[Path]:
    """Write to the yielded path; it becomes `path` when the block ends without an exception."""
    with _storage_errors(path.parent, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{TEMPORARY}{path.name}-", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            _fsync(temporary)
            temporary.replace(path)
            _fsync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, *, needed: int = 0) -> Iterator[Path]:
    """Fill the yielded folder; it replaces `path` when the block ends without an exception."""
    with _storage_errors(path.parent, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        clean(path.parent)
        temporary = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{path.name}-", dir=path.parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for file in (f for f in temporary.rglob("*") if f.is_file()):
                _fsync(file)
            _swap_in(temporary, path)
            _fsync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(*, needed: int = 0) -> Iterator[Path]:
    """A folder in home() for downloads, deleted when the block ends."""
    with _storage_errors(home(), needed):
        home().mkdir(parents=True, exist_ok=True)
        clean(home())
        scratch = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=home()))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Held by one process at a time; the system releases it when a process dies."""
    from filelock import FileLock

    folder = home() / "locks"
    with _storage_errors(home(), 0):
        folder.mkdir(parents=True, exist_ok=True)
        holder = FileLock(folder / f"{name}.lock")
        holder.acquire()
    try:
        yield
    finally:
        holder.release()


def clean(folder: Path) -> None:
    """Undo interrupted swaps, and delete temporary files older than a day."""
    for leftover in folder.glob(f"{REPLACED}*"):
        path = folder / leftover.name.removeprefix(REPLACED)
        if path.exists():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                leftover.rename(path)
    for leftover in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime < DAY:
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()


def delete_folder(path: Path) -> None:
    """Rename the folder to a temporary name, then delete it."""
    with _storage_errors(path.parent, 0):
        doomed = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
        path.rename(doomed / path.name)
    shutil.rmtree(doomed, ignore_errors=True)


def folder_size(folder: Path) -> int:
    """Bytes in all files below the folder; files deleted meanwhile do not count."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def require_space(needed: int) -> None:
    """Raise CheckpointError where the disk under home() has less free."""
    folder = next(parent for parent in (home(), *home().parents) if parent.exists())
    if shutil.disk_usage(folder).free < needed:
        raise no_space(home(), needed)


def _swap_in(temporary: Path, path: Path) -> None:
    """Two renames when `path` exists; if interrupted between them, `clean` restores the old one."""
    aside = path.with_name(REPLACED + path.name)
    for last in (False, False, True):  # `clean` of another process may come in between
        if path.exists():
            path.rename(aside)
        try:
            temporary.rename(path)
            break
        except OSError:
            if aside.exists() and not path.exists():
                aside.rename(path)
            if last:
                raise
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _storage_errors(folder: Path, needed: int) -> Iterator[None]:
    """One line instead of OSError for a full disk or a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise no_space(folder, needed) from error
        inside = str(error.filename or "").startswith(str(folder))
        if error.errno in REFUSED and inside:
            raise CheckpointError(
                f"cannot write in {folder} ({os.strerror(error.errno)}): "
                f"allow it or {_another(folder)}"
            ) from error
        raise


def no_space(folder: Path, needed: int) -> CheckpointError:
    """The line for a full disk; `needed` is in bytes, 0 when not known."""
    amount = f"{-(-needed // 10**6)} MB needed; " if needed else ""
    return CheckpointError(f"no space left in {folder}: {amount}free some or {_another(folder)}")


def _another(folder: Path) -> str:
    """How to choose another folder: for Graft's own, or for one the user named."""
    ours = folder.absolute().is_relative_to(home())
    return "set GRAFT_HOME to another folder" if ours else "name another folder"


def _fsync(path: Path) -> None:
    """Folders cannot be synced on every system; a file that cannot is an error."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in (*FULL_DISK, errno.EIO):
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    """The process's mask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
