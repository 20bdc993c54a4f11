"""Result files of suites without prompts: a header per session, then a line per measurement.

The file is written line by line, so that a run can stop anywhere and the same command goes on.
"""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from graft.bench import about
from graft.bench.records import held, read_rows, write_row
from graft.errors import InputError

FORMAT = 1
ROW = "row"


@dataclass(slots=True)
class Journal:
    """`kind` is the suite's; `key` names the fields that make a row unique, the last one counts."""

    kind: str
    key: tuple[str, ...]
    sessions: list[dict[str, Any]] = field(default_factory=list)
    found: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    file: IO[str] | None = None
    path: Path = Path()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What was measured, as it came."""
        return list(self.found.values())

    def begin(self, fixed: dict[str, Any]) -> None:
        """A session; what is `fixed` must be the same in all of them, or nothing compares."""
        for session in self.sessions:
            for name, before in session["fixed"].items():
                if (now := fixed.get(name, before)) != before:
                    raise InputError(
                        f"{self.path} was measured with {name} {before}, not {now}, and cannot be "
                        "compared; name another --out"
                    )
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        header = {"date": date, "commit": about.commit(), "versions": about.versions()}
        header |= {"hardware": about.hardware(), "fixed": fixed}
        self._add({"record": self.kind, "format": FORMAT, **header})

    def add(self, row: dict[str, Any]) -> None:
        """One measurement, on its way to the disk."""
        self._add({"record": ROW, **row})

    def done(self, *key: object) -> bool:
        """Whether it need not be measured again."""
        return key in self.found and not self.found[key].get("error")

    def take(self, row: dict[str, Any]) -> None:
        """One line of a file."""
        record = row.pop("record")
        if record == ROW:
            self.found[tuple(row[name] for name in self.key)] = row
        elif record == self.kind and row["format"] == FORMAT:
            self.sessions.append(row)
        else:
            raise ValueError(record)

    def _add(self, row: dict[str, Any]) -> None:
        if self.file is not None:
            write_row(self.file, self.path, row)
        self.take(dict(row))


def read_journal(path: Path, kind: str, key: tuple[str, ...]) -> Journal:
    """Everything in a file; a last line cut short by an interruption is passed over."""
    journal = Journal(kind, key, path=path)
    read_rows(path, journal.take)
    if not journal.sessions:
        raise InputError(f"{path} has no header; give a file written by graft bench {kind}")
    return journal


@contextmanager
def open_journal(path: Path | None, kind: str, key: tuple[str, ...]) -> Iterator[Journal]:
    """Go on with a file, or keep everything in memory."""
    with held(path) if path else nullcontext() as file:
        journal = Journal(kind, key, file=file, path=path or Path())
        if path:
            read_rows(path, journal.take)
        yield journal


def heading(journal: Journal) -> str:
    """Machine, versions, date: one paragraph."""
    session = journal.sessions[-1]
    hardware = session["hardware"]
    versions = ", ".join(f"{name} {number}" for name, number in session["versions"].items())
    commit = f" ({session['commit']})" if session.get("commit") else ""
    fixed = ", ".join(f"{name} {value}" for name, value in session["fixed"].items())
    where = ", ".join(hardware["gpus"]) or hardware["cpu"]
    return (
        f"{fixed}; {where}, {hardware['cores']} cores; {versions}{commit}; {session['date'][:10]}"
    )
