"""Prefix cache on disk: the rows of documents, for the next process.

A file holds the rows of one text in blocks, a checksum of each, and the text's tokens. Its folder
is named after everything the rows depend on: weights, dtype, forward. Files that fail a check are
deleted and never used. The least recently used are deleted when the folder is full.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from graft.errors import GraftError
from graft.home import atomic_file, clean, home
from graft.models.arena import BLOCK, Arena, Extent

log = logging.getLogger(__name__)

FORMAT = "1"  # raise when the layout of the files or the numbers of a forward change
_MIN_NEW_BLOCKS = 2  # for a file to be written
# What reading a damaged file may raise
BROKEN = (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError)


def rows_key(*parts: str) -> str:
    """A digest of everything that rows depend on."""
    return hashlib.sha256("\n".join((FORMAT, *parts)).encode()).hexdigest()[:24]


def prefix_folder() -> Path:
    """The folder of all models' files."""
    return home() / "prefixes"


def kept(folder: Path) -> tuple[int, int]:
    """Number and bytes of the files below `folder`."""
    sizes = [size for _, size, _ in stored(folder)]
    return len(sizes), sum(sizes)


def forget(folder: Path) -> int:
    """Delete all files below `folder`; the bytes freed."""
    _, total = kept(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return total


def make_room(folder: Path, max_bytes: int) -> None:
    """Delete the least recently used files below the folder until the rest fits."""
    files = sorted(stored(folder))
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= max_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size


class PrefixFiles:
    """A store (`prefix_cache.PrefixStore`) in `folder`, for the rows that `key` names.

    `max_bytes` bounds the files of all keys together.
    """

    def __init__(self, folder: Path, key: str, *, max_bytes: int) -> None:
        self._root, self._folder, self._key = folder, folder / key, key
        self._most = max_bytes
        self._known: dict[tuple[str, int], _File] = {}

    def fetch(self, tokens: np.ndarray, known: int, arena: Arena) -> Extent | None:
        """See PrefixStore."""
        file, found = self._best(tokens)
        if file is None or found <= known:
            return None
        extent = arena.reserve(found)
        try:
            file.read(extent, found // BLOCK, arena)
            os.utime(file.path)
        except BROKEN as error:
            log.warning("%s is damaged and is deleted (%s)", file.path, error)
            arena.release(extent)
            file.path.unlink(missing_ok=True)
            return None
        return extent

    def put(self, tokens: np.ndarray, arena: Arena, extent: Extent) -> None:
        """See PrefixStore. A failed write is logged, not raised: the answer is done already."""
        size = len(tokens) * arena.storage.row_bytes
        if len(tokens) - self._best(tokens)[1] < _MIN_NEW_BLOCKS * BLOCK or size > self._most:
            return
        try:
            self._write(tokens, arena, extent, size)
            make_room(self._root, self._most)
        except (GraftError, OSError) as error:
            log.warning("the document's cache is not kept on disk: %s", error)

    def _write(self, tokens: np.ndarray, arena: Arena, extent: Extent, size: int) -> None:
        rows = extent.rows
        blocks = {
            _name(i): arena.storage.read(rows[i * BLOCK : (i + 1) * BLOCK]).cpu().contiguous()
            for i in range(len(tokens) // BLOCK)
        }
        text = torch.from_numpy(tokens.copy())
        sums = [checksum(block) for block in blocks.values()]
        about = {"key": self._key, "text": checksum(text), "checksums": json.dumps(sums)}
        covered = [f for f in self._files() if _common_blocks(f.tokens, tokens) == len(f.tokens)]
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o700)  # a document can be reconstructed from its rows
        clean(self._folder)
        name = hashlib.sha256(tokens.tobytes()).hexdigest()[:32]
        with atomic_file(self._folder / f"{name}.safetensors", needed=size) as temporary:
            save_file({"tokens": text, **blocks}, temporary, about)
        for file in covered:
            file.path.unlink(missing_ok=True)

    def _best(self, tokens: np.ndarray) -> "tuple[_File | None, int]":
        """The file with the longest prefix of `tokens`, and its length."""
        common = [(_common_blocks(file.tokens, tokens), file) for file in self._files()]
        known, file = max(common, key=lambda each: each[0], default=(0, None))
        return (file, known) if known else (None, 0)

    def _files(self) -> "list[_File]":
        """All readable files of this key; headers are read once."""
        known = {}
        for _, _, path in stored(self._folder):
            with contextlib.suppress(OSError):
                place = (path.name, path.stat().st_mtime_ns)
                known[place] = self._known.get(place) or _open(path, self._key)
        self._known = known
        return [file for file in known.values() if file]


@dataclass(frozen=True, slots=True)
class _File:
    """A file with a valid header."""

    path: Path
    tokens: np.ndarray
    checksums: list[str]

    def read(self, extent: Extent, blocks: int, arena: Arena) -> None:
        """Fill the extent with the first blocks, each checked."""
        with safe_open(self.path, "pt") as opened:
            for i in range(blocks):
                content = opened.get_tensor(_name(i))
                if checksum(content) != self.checksums[i]:
                    raise ValueError(f"checksum of block {i} is wrong")
                first = extent.start + i * BLOCK
                arena.storage.write(np.arange(first, first + BLOCK), content)
        extent.length = blocks * BLOCK


def _open(path: Path, key: str) -> _File | None:
    """The file's tokens and checksums; an invalid file is deleted."""
    try:
        with safe_open(path, "pt") as opened:
            about, tokens = opened.metadata(), opened.get_tensor("tokens")
            checksums = json.loads(about["checksums"])
            if about["key"] != key:
                raise ValueError("it belongs to another model")
            if checksum(tokens) != about["text"] or len(checksums) * BLOCK != len(tokens):
                raise ValueError("its text does not fit its checksums")
    except BROKEN as error:
        log.warning("%s is damaged and is deleted (%s)", path, error)
        path.unlink(missing_ok=True)
        return None
    return _File(path, tokens.numpy(), checksums)


def stored(folder: Path) -> list[tuple[int, int, Path]]:
    """(last used, size, path) of all files below the folder."""
    found = []
    for path in folder.rglob("*.safetensors"):
        with contextlib.suppress(OSError):
            state = path.stat()
            found.append((state.st_mtime_ns, state.st_size, path))
    return found


def _name(block: int) -> str:
    return f"block.{block}"


def checksum(content: torch.Tensor) -> str:
    """Of the bytes of a tensor."""
    return hashlib.sha256(content.contiguous().view(torch.uint8).numpy()).hexdigest()


def _common_blocks(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix, in whole blocks."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return (int(different[0]) if len(different) else length) // BLOCK * BLOCK
