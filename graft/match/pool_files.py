"""The files of a pool: one append-only log of texts for each segment.

FOLDER/TOKENIZER/KEY/NUMBER.tokens, where KEY is a digest. A text is one record: the number of its
tokens, a CRC-32 and the tokens, all u32, little endian, written by one system call. So a killed
process loses at most the text it was writing, and a machine that loses power what its system had
not written yet. Reading ends at the first record that is not whole; the writer cuts it off.

One process at a time writes to a folder; others read it and keep what they learn in memory.
"""

import contextlib
import errno
import hashlib
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graft.errors import InputError

log = logging.getLogger(__name__)
ENDING, LOCK = ".tokens", ".lock"
MAGIC = b"GRAFTPL1"
_HEAD = 8  # bytes of a record before its tokens


class SegmentFile:
    """The log of one segment. A disk error is logged once and ends the writing, not the request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        self._size = 0
        self._failed = False

    def append(self, tokens: np.ndarray) -> None:
        """Write a text."""
        if self._failed:
            return
        content = tokens.astype("<u4").tobytes()
        count = np.array([len(tokens)], "<u4").tobytes()
        check = np.array([zlib.crc32(content, zlib.crc32(count))], "<u4").tobytes()
        try:
            self._write(count + check + content)
        except OSError as error:
            log.warning("the pool is no longer written to %s: %s", self._path, error)
            self._failed = True
            with contextlib.suppress(OSError):  # else the next reader cuts it off
                os.truncate(self._path, self._size)
            self._close()

    def close(self) -> None:
        """Write what the system holds to the disk, and close; `append` opens it again."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._handle)
            self._close()

    def delete(self) -> None:
        """Delete the file, and its folder if it was the last."""
        self._close()
        self._failed = True
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()

    def _write(self, record: bytes) -> None:
        if self._handle is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._handle).st_size
        if not self._size:
            record = MAGIC + record
        if os.write(self._handle, record) != len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(record)

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def key_name(salt: str) -> str:
    """A key's folder, whose name does not show the key."""
    return hashlib.blake2b(salt.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def pool_texts(folder: Path, tokenizer: str) -> Iterator[np.ndarray]:
    """The texts of one key: of a key's folder, or of those without a key in a pool's folder.
    InputError if there are none for this tokenizer."""
    own = _of_tokenizer(folder, tokenizer) / key_name("")
    if folder.absolute().parent.name == own.parent.name:
        own = folder
    files = sorted(own.glob(f"*{ENDING}"))
    if not files:
        raise InputError(
            f"{folder} has no answers for the datastore's tokenizer: `graft serve --pool FOLDER` "
            "keeps them"
        )
    for file in files:
        yield from read_texts(file)[0]


def _of_tokenizer(folder: Path, tokenizer: str) -> Path:
    return folder / (tokenizer[:16] or "none")


class PoolFolder:
    """The files of all keys for one tokenizer; InputError for a folder that cannot be used."""

    def __init__(self, folder: Path, tokenizer: str) -> None:
        from filelock import FileLock, Timeout

        self._folder = _of_tokenizer(folder, tokenizer)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._folder / LOCK)
            self._lock.acquire(timeout=0)
        except Timeout:
            log.warning("another process writes to the pool %s: this one only reads it", folder)
        except OSError as error:
            raise InputError(f"the pool cannot be kept in {folder}: {error.strerror}") from error
        self._files = self._found()
        self._last = max((int(file.stem) for file in self._files), default=0)

    @property
    def writes(self) -> bool:
        """Whether this process writes to the folder."""
        return self._lock.is_locked

    def read(self) -> Iterator[tuple[str, SegmentFile | None, list[np.ndarray]]]:
        """Key, log and texts of every file, the one written to last at the end."""
        for path in self._files:
            texts, size = read_texts(path)
            if self.writes and size < path.stat().st_size:
                os.truncate(path, size)
            yield path.parent.name, SegmentFile(path) if self.writes else None, texts

    def new_segment(self, key: str) -> SegmentFile | None:
        """A new file; it is made with its first text."""
        if not self.writes:
            return None
        self._last += 1
        return SegmentFile(self._folder / key / f"{self._last:08}{ENDING}")

    def release(self) -> None:
        """Let another process write."""
        self._lock.release()

    def _found(self) -> list[Path]:
        files = [file for file in self._folder.glob(f"*/*{ENDING}") if file.stem.isdigit()]
        return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.stem))


def read_texts(path: Path) -> tuple[list[np.ndarray], int]:
    """The texts of a file, and its bytes up to the end of the last whole record."""
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        return [], 0
    texts, at = [], len(MAGIC)
    while at + _HEAD <= len(content):
        count, check = np.frombuffer(content, "<u4", 2, at).tolist()
        stop = at + _HEAD + 4 * count
        if stop > len(content):
            break
        body = content[at + _HEAD : stop]
        if zlib.crc32(body, zlib.crc32(content[at : at + 4])) != check:
            break
        texts.append(np.frombuffer(body, "<u4").astype(np.int32))
        at = stop
    return texts, at
