"""Result files, format 2: JSON lines of one schema for every kind of measurement.

The first line is a header; a run that resumes a file appends another one:

    {"record": "header", "format": 2, "kind": "decode", "key": ["prompts", "variant", ...],
     "date", "commit", "versions": {}, "hardware": {}, "command": [], "settings": {}}

`kind` says what was measured (decode, kernels, rag, serve, index, datastore, train, ...), `key`
names the fields that identify a row, `settings` holds the options of the run. Every measurement
is one flat line with the time in fields that end in `_seconds` and what is compared in `variant`:

    {"record": "row", "variant": "auto", "decode_seconds": 1.25, ...}

A measurement that failed is a row with the message in `error`; it is measured again on resume.
Other lines describe the input of the rows: `prompt` (id, context, category, packed tokens), `gold`
(reference answers of a prompt), `likelihood` (of a gold answer), `engine` (versions and settings
of an engine process). Lines are flushed one by one, so an interrupted run can be resumed.
"""

import base64
import datetime
import hashlib
import json
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from graft.bench import about
from graft.errors import InputError

FORMAT = 2
HEADER, ROW, PROMPT, GOLD = "header", "row", "prompt", "gold"
LIKELIHOOD, ENGINE = "likelihood", "engine"
RECORDS = (HEADER, ROW, PROMPT, GOLD, LIKELIHOOD, ENGINE)
# Settings that may differ between two runs that write to one file: they select what is measured.
SELECTING = frozenset(
    ("batches", "categories", "cell", "command", "concurrency", "contexts", "data", "drafts",
     "engines", "groups", "limit", "limit_seconds", "nodes", "out", "parts", "policies", "prompts",
     "repeats", "sets", "split", "temperatures", "variants")
)  # fmt: skip
# Fields that identify a row, by kind; other kinds have none: no row replaces another.
KEYS = {
    "decode": ("suite", "prompts", "variant", "temperature", "batch", "context", "repeat"),
    "rag": ("set", "question", "policy", "variant", "repeat"),
    "kernels": ("part", "variant", "context", "nodes"),
    "serve": ("concurrency",),
    "index": ("index", "tokens"),
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One run of a command; see the top of this file."""

    kind: str
    settings: dict[str, Any]
    key: list[str] = field(default_factory=list)  # empty: no row replaces another
    date: str = ""
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def new_header(kind: str, settings: dict[str, Any], notes: Sequence[str] = ()) -> Header:
    """A header of this process, machine and moment."""
    return Header(
        kind=kind,
        settings=settings,
        key=list(KEYS.get(kind, ())),
        date=now(),
        commit=about.commit(),
        versions=about.versions(),
        hardware=about.hardware(),
        command=sys.argv[1:],
        notes=list(notes),
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(slots=True)
class Results:
    """The contents of a result file.

    `rows` have a field `session`, the place of their header. Of rows with the same key the last one
    counts. `records` holds the other lines by the name of their record.
    """

    headers: list[Header] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    records: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    _places: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What was measured."""
        return self.headers[0].kind if self.headers else ""

    @property
    def header(self) -> Header:
        """The last header."""
        return self.headers[-1]

    @property
    def measured(self) -> list[Row]:
        """Rows without an error."""
        return [row for row in self.rows if not _failed(row)]

    def has(self, row: Row) -> bool:
        """Whether a row with this one's key was measured without an error."""
        place = self._places.get(_key(self.header.key, row)) if self.headers else None
        return place is not None and not _failed(self.rows[place])

    def add(self, line: Row) -> None:
        """Take one line of a file; ValueError or KeyError where it does not fit the schema."""
        record = line.pop("record")
        if record not in RECORDS:
            raise ValueError(record)
        if record == HEADER:
            if line.pop("format") != FORMAT or self.kind not in ("", line["kind"]):
                raise ValueError(line["kind"])
            self.headers.append(Header(**line))
        elif record == ROW:
            self._add_row({**line, "session": len(self.headers) - 1})
        else:
            self.records[record].append(line)

    def _add_row(self, row: Row) -> None:
        key = _key(self.header.key, row)
        if self.header.key and key in self._places:
            self.rows[self._places[key]] = row
            return
        self._places[key] = len(self.rows)
        self.rows.append(row)


def _failed(row: Row) -> bool:
    return isinstance(row.get("error"), str)


def _key(names: Sequence[str], row: Row) -> str:
    return json.dumps([row.get(name) for name in names])


def read_results(path: Path) -> Results:
    """The contents of a file, without a last line cut short by an interruption."""
    results = Results()
    _read_into(results, path)
    if not results.headers:
        raise InputError(f"{path} has no header; give a result file of format {FORMAT}")
    return results


def _read_into(results: Results, path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read; give a result file") from error
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            results.add(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            message = f"{path}, line {number} is no line of a result file of format {FORMAT}"
            raise InputError(message) from None


class ResultFile:
    """Reads a result file and appends to it; without a path the results stay in memory."""

    def __init__(self, file: IO[str] | None = None, path: Path = Path()) -> None:
        self.results = Results()
        self._file, self._path = file, path
        if file is not None:
            _read_into(self.results, path)

    def begin(self, header: Header) -> None:
        """Add a header; refuse settings that make its rows incomparable with those of the file."""
        for before in self.results.headers:
            refuse_mixing(self._path, before, header)
        self._write({"record": HEADER, "format": FORMAT, **asdict(header)})

    def row(self, row: Row) -> None:
        """Add a measurement; fields that are None are left out."""
        self.record(ROW, row)

    def record(self, record: str, line: Row) -> None:
        """Add a line."""
        known = {name: value for name, value in line.items() if value is not None}
        self._write({"record": record, **known})

    def _write(self, line: Row) -> None:
        if self._file is not None:
            try:
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
                self._file.flush()
            except OSError as error:
                raise _unwritable(self._path, error) from error
        self.results.add(dict(line))


def refuse_mixing(path: Path, before: Header, after: Header) -> None:
    """InputError where two headers differ in something that changes times."""
    if before.kind != after.kind:
        raise InputError(f"{path} holds results of {before.kind}; choose another --out")
    old, new = (_fixed(header) for header in (before, after))
    for name, value in old.items():
        if (now := new.get(name, value)) != value:
            raise InputError(
                f"{path} was measured with {name} {value}, not {now}, and cannot be compared; "
                "choose another --out"
            )


def _fixed(header: Header) -> dict[str, Any]:
    settings = {name: v for name, v in header.settings.items() if name not in SELECTING}
    settings.setdefault("load_options", {})  # a header has no empty ones
    machine = {name: header.hardware.get(name) for name in ("cpu", "cores", "gpus")}
    return json.loads(json.dumps({**settings, **machine, **header.versions}))


@contextmanager
def open_results(path: Path | None) -> Iterator[ResultFile]:
    """Open a file for this process alone, to resume it; None keeps the results in memory.

    A partial last line is removed; a file that stays empty is deleted.
    """
    if path is None:
        yield ResultFile()
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        _lock(file, path)
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        try:
            yield ResultFile(file, path)
        finally:
            if path.stat().st_size == 0:
                path.unlink()


def _lock(file: IO[str], path: Path) -> None:
    """Until the file is closed."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        message = f"another run is writing to {path}; wait for it or choose another --out"
        raise InputError(message) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror}); choose another --out")


def output_hash(token_ids: Sequence[Sequence[int]]) -> str:
    """A short name of generated tokens: rows with the same output have the same one."""
    return hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:16]


def pack_tokens(tokens: Sequence[int]) -> str:
    """Token ids as compressed base64, a quarter of the length of their digits."""
    return base64.b64encode(zlib.compress(np.array(tokens, "<i4").tobytes(), 9)).decode()


def unpack_tokens(text: str) -> list[int]:
    """The inverse of `pack_tokens`."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4").tolist()
    except zlib.error as error:
        raise ValueError(str(error)) from error
