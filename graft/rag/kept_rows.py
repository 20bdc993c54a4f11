"""Keys and values of pieces of text: the last used in memory, others on disk.

An entry is named by a hash of everything its rows depend on: the model (weights, dtype, forward,
rotation), the text itself and the text before it. On disk lie only rows that follow from this
name; a file that is not what it should be is a miss, and is deleted.
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

ROWS = "2"  # layout of the files
PLENTY = 2 << 30  # bytes that must be free on a GPU for rows to stay there


def name_of(key: str, before: str, tokens: np.ndarray) -> str:
    """Of the rows of tokens (int32) after a text whose own name is `before`."""
    digest = hashlib.sha256(f"{ROWS}\n{key}\n{before}\n".encode())
    digest.update(tokens.tobytes())
    return digest.hexdigest()[:40]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Rows of a piece of text, the first of them computed at position `first`.

    `clean`: they are what the model computes after the text that the name says; others were
    computed on top of reused rows.
    """

    name: str
    tokens: np.ndarray  # [n] int32
    rows: Tensor  # [2, L, K, n, D], where the model computes or on the host
    first: int
    clean: bool

    @property
    def size(self) -> int:
        """Bytes."""
        return self.rows.nbytes


def at_hand(rows: Tensor) -> Tensor:
    """Rows of a model as they are best kept: on its GPU while there is plenty of room, as taking
    them to the host and back takes as long as reading a passage anew; else on the host."""
    if rows.is_cuda and torch.cuda.mem_get_info(rows.device)[0] >= PLENTY:
        return rows
    return rows.cpu()


class KeptRows:
    """Entries by name, `most_bytes` of them in memory and `disk_bytes` in the folder, if one is
    given; the longest unused go first. May be used by many threads, the folder by many processes.
    """

    def __init__(
        self, key: str, *, most_bytes: int, folder: Path | None = None, disk_bytes: int = 0
    ) -> None:
        self._key, self._most = key, most_bytes
        self._folder, self._most_on_disk = folder, disk_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._door = threading.Lock()
        self.bytes = 0
        self.evicted = self.spilled = 0

    def get(self, name: str, tokens: np.ndarray, first: int) -> Entry | None:
        """The entry of this name, which is for these tokens from position `first` on; from memory
        or disk."""
        with self._door:
            if entry := self._entries.get(name):
                self._entries.move_to_end(name)
                return entry
        entry = self._read(name, tokens, first)
        if entry:
            self.put(entry)
        return entry

    def put(self, entry: Entry) -> None:
        """Keep an entry, unless one of its name is kept; what has to give way goes to disk."""
        with self._door:
            if entry.name in self._entries:
                return
            self._entries[entry.name] = entry
            self.bytes += entry.size
            leaving = []
            while self.bytes > self._most:
                _, oldest = self._entries.popitem(last=False)
                self.bytes -= oldest.size
                leaving.append(oldest)
            self.evicted += len(leaving)
        for each in leaving:
            self._write(each)

    def drop(self, name: str) -> None:
        """Forget an entry in memory."""
        with self._door:
            if entry := self._entries.pop(name, None):
                self.bytes -= entry.size

    def flush(self) -> None:
        """Write what is in memory to disk too, for the next process."""
        with self._door:
            entries = list(self._entries.values())
        for entry in entries:
            self._write(entry)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the files of all models in the folder."""
        return kept(self._folder)[1] if self._folder else 0

    def _path(self, name: str) -> Path:
        return self._folder / self._key / f"{name}.safetensors"

    def _write(self, entry: Entry) -> None:
        """A disk that refuses is logged, not raised: rows can be computed again."""
        if not self._folder or not entry.clean or entry.size > self._most_on_disk:
            return
        path = self._path(entry.name)
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
            self._folder.chmod(0o700)  # whoever reads the rows can guess the text
            clean(path.parent)
            with atomic_file(path, needed=entry.size) as temporary:
                save_file({"tokens": text, "rows": rows}, temporary, about)
            make_room(self._folder, self._most_on_disk)
            with self._door:
                self.spilled += 1
        except (GraftError, OSError) as error:
            log.warning("a passage's rows are not kept on disk: %s", error)

    def _read(self, name: str, tokens: np.ndarray, first: int) -> Entry | None:
        if not self._folder or not (path := self._path(name)).exists():
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
                raise ValueError("its text is another one")
            os.utime(path)
            return Entry(name, text.numpy(), rows, first, clean=True)
        except BROKEN as error:
            log.warning("%s is damaged and is deleted (%s)", path, error)
            path.unlink(missing_ok=True)
            return None
