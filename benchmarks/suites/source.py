"""Files of published question sets: JSON or JSON lines, gzipped or not; every fault is one line."""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from graft.errors import InputError

GZIP = b"\x1f\x8b"  # how such a file begins
Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a set: `names` are those it is published under, `row` says what is in it.

    `take` in the methods makes something of a row; what it raises for a row that is none of the
    set's becomes a line that names the place.
    """

    suite: str
    owner: str
    names: tuple[str, ...]
    row: str

    def find(self, data: Path | None) -> Path:
        """`data` itself if it is a file, or the set's file in that folder."""
        if data is None:
            raise InputError(
                f"{self.suite} needs --data: the folder with {self.owner}'s {self._named}"
            )
        if not data.is_dir():
            return data
        known = [data / f"{name}{ending}" for name in self.names for ending in ("", ".gz")]
        return next((path for path in known if path.is_file()), known[0])

    def text(self, data: Path | None) -> str:
        """The whole file."""
        return self._text(self.find(data))

    def lines(self, data: Path | None, take: Callable[[Any], Taken]) -> list[Taken]:
        """A row per line."""
        path = self.find(data)
        numbered = enumerate(self._text(path).split("\n"), 1)
        rows = {f"line {number}": line for number, line in numbered if line.strip()}
        return self._each(path, rows, lambda line: take(json.loads(line)))

    def entries(self, data: Path | None, take: Callable[[Any], Taken]) -> list[Taken]:
        """The rows of one JSON list, which may be the field `data` of an object."""
        path = self.find(data)
        try:
            whole = json.loads(self._text(path))
        except ValueError as error:
            raise self._unusable(path, f"is not JSON ({error})") from None
        rows = whole.get("data") if isinstance(whole, dict) else whole
        if not isinstance(rows, list):
            raise self._unusable(path, "holds no list")
        return self._each(path, {f"entry {n}": row for n, row in enumerate(rows, 1)}, take)

    def rows(self, data: Path | None, take: Callable[[Any], Taken]) -> list[Taken]:
        """A row per line or the rows of one JSON list, whichever the file holds."""
        listed = self._text(self.find(data)).lstrip().startswith("[")
        return self.entries(data, take) if listed else self.lines(data, take)

    @property
    def _named(self) -> str:
        return " or ".join(self.names)

    def _text(self, path: Path) -> str:
        try:
            content = path.read_bytes()
        except OSError as error:
            line = f"{path} cannot be read; --data is the folder with {self._named}"
            raise InputError(line) from error
        try:
            content = gzip.decompress(content) if content.startswith(GZIP) else content
            return content.decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise self._unusable(path, "is damaged") from error

    def _each(
        self, path: Path, rows: Mapping[str, Any], take: Callable[[Any], Taken]
    ) -> list[Taken]:
        if not rows:
            raise self._unusable(path, "is empty")
        taken = []
        for where, row in rows.items():
            try:
                taken.append(take(row))
            except (ValueError, LookupError, TypeError, AttributeError):
                raise InputError(f"{path}, {where} is not {self.row}") from None
        return taken

    def _unusable(self, path: Path, why: str) -> InputError:
        return InputError(f"{path} {why}; download {self.owner}'s {self._named} again")


def text(row: Mapping[str, Any], field: str) -> str:
    """A field that must hold text."""
    if not _is_text(value := row[field]):
        raise ValueError(field)
    return value


def texts(row: Mapping[str, Any], field: str) -> list[str]:
    """A field that must hold a list of texts."""
    values = row[field]
    if not isinstance(values, list) or not values or not all(map(_is_text, values)):
        raise ValueError(field)
    return values


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
