"""A cache of keys and values of pieces of text: least recently used ones go from memory to disk.

The name of an entry is a hash of everything its rows depend on: the model (weights, dtype, forward,
rotation), the text and the text before it. Only rows that this name determines are written to disk;
a damaged file is a miss and is deleted.
"""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from graft.errors import GraftError
from graft.home import atomic_file, clean
from graft.models.prefix_files import BROKEN, checksum, kept, make_room

log = logging.getLogger(__name__)

FORMAT = "2"  # of the files
MIN_FREE_BYTES = 2 << 30  # on a GPU for rows to stay there


def entry_name(key: str, before: str, tokens: np.ndarray) -> str:
    """The name of the rows of tokens (int32) after a text whose name is `before`."""
    digest = hashlib.sha256(f"{FORMAT}\n{key}\n{before}\n".encode())
    digest.update(tokens.tobytes())
    return digest.hexdigest()[:40]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Rows of a piece of text; the first is computed at position `first`.

    `exact`: they are the rows that the model computes after the text in the name; others were
    computed on top of approximate rows.
    """

    name: str
    tokens: np.ndarray  # [n] int32
    rows: Tensor  # [2, L, K, n, D], on the model's device or the host
    first: int
    exact: bool

    @property
    def size(self) -> int:
        """Bytes."""
        return self.rows.nbytes


def to_storage(rows: Tensor) -> Tensor:
    """The rows on the device to keep them on: their GPU while it has free memory, else the host.

    Copying them to the host and back takes as long as the prefill of a passage.
    """
    if rows.is_cuda and torch.cuda.mem_get_info(rows.device)[0] >= MIN_FREE_BYTES:
        return rows
    return rows.cpu()


class RowCache:
    """Entries by name: at most `max_bytes` in memory and, with a folder, `disk_bytes` on disk. Many
    threads may use it, and many processes the folder.
    """

    def __init__(
        self, key: str, *, max_bytes: int, folder: Path | None = None, disk_bytes: int = 0
    ) -> None:
        self._key, self._max_bytes = key, max_bytes
        self._folder, self._max_disk_bytes = folder, disk_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        self.evicted = self.spilled = 0

    def get(self, name: str, tokens: np.ndarray, first: int) -> Entry | None:
        """The entry of this name, from memory or disk; None if there is none. Its tokens and the
        position of the first are given."""
        with self._lock:
            if entry := self._entries.get(name):
                self._entries.move_to_end(name)
                return entry
        entry = self._read(name, tokens, first)
        if entry:
            self.put(entry)
        return entry

    def put(self, entry: Entry) -> None:
        """Add an entry, unless one of its name exists; evicted entries go to disk."""
        with self._lock:
            if entry.name in self._entries:
                return
            self._entries[entry.name] = entry
            self.bytes += entry.size
            evicted = []
            while self.bytes > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self.bytes -= oldest.size
                evicted.append(oldest)
            self.evicted += len(evicted)
        for each in evicted:
            self._write(each)

    def drop(self, name: str) -> None:
        """Remove an entry from memory."""
        with self._lock:
            if entry := self._entries.pop(name, None):
                self.bytes -= entry.size

    def flush(self) -> None:
        """Write all entries to disk, for the next process."""
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            self._write(entry)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files in the folder."""
        return kept(self._folder)[1] if self._folder else 0

    def _path(self, folder: Path, name: str) -> Path:
        return folder / self._key / f"{name}.safetensors"

    def _write(self, entry: Entry) -> None:
        """Write an entry; a disk error is logged, not raised, since rows can be computed again."""
        folder = self._folder
        if folder is None or not entry.exact or entry.size > self._max_disk_bytes:
            return
        path = self._path(folder, entry.name)
        if path.exists():
            return
        text = torch.from_numpy(entry.tokens.copy())
        rows = entry.rows.cpu().contiguous()
        about = {
            "key": self._key, "name": entry.name,
            "text": checksum(text), "rows": checksum(rows),
        }  # fmt: skip
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # the text can be recovered from the rows
            clean(path.parent)
            with atomic_file(path, needed=entry.size) as temporary:
                save_file({"tokens": text, "rows": rows}, temporary, about)
            make_room(folder, self._max_disk_bytes)
            with self._lock:
                self.spilled += 1
        except (GraftError, OSError) as error:
            log.warning("rows of a passage cannot be written to disk: %s", error)

    def _read(self, name: str, tokens: np.ndarray, first: int) -> Entry | None:
        if not self._folder or not (path := self._path(self._folder, name)).exists():
            return None
        try:
            with safe_open(path, "pt") as opened:
                about = opened.metadata()
                text, rows = opened.get_tensor("tokens"), opened.get_tensor("rows")
            if (about["key"], about["name"]) != (self._key, name):
                raise ValueError("it belongs to another model or text")
            if (checksum(text), checksum(rows)) != (about["text"], about["rows"]):
                raise ValueError("its checksum is wrong")
            if not np.array_equal(text.numpy(), tokens) or rows.shape[3] != len(tokens):
                raise ValueError("it has another text")
            os.utime(path)
            return Entry(name, text.numpy(), rows, first, exact=True)
        except BROKEN as error:
            log.warning("%s is damaged and is deleted (%s)", path, error)
            path.unlink(missing_ok=True)
            return None
