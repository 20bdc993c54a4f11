"""The result file: JSON lines, written one by one, so that a run can stop and go on at any time.

Kinds of lines: a `header` for every session (versions, hardware, options), a `worker` for every
process that was started (its versions and settings), a `prompt` for every prompt at every context
(so that `graft simulate` can replay answers), an `answer` for every measurement; where a suite has
gold, a `gold` for every prompt and perhaps a `likelihood` for every way it is read.
Token ids, and with gold their text, are written with the first answer that has them; equal answers
repeat only their hash.
"""

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from graft.bench.task import Gold
from graft.errors import InputError

FORMAT = 1
Key = tuple[tuple[int, ...], str, float, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One system's answer to one prompt, or to `batch` prompts at once; times in seconds.

    `prefill_seconds` is the time to the first token of every prompt, `first_tokens` how many had
    come by then; decoding is what follows. None where an engine does not tell.
    """

    suite: str
    question_ids: list[int]
    category: str
    system: str
    temperature: float
    batch: int
    repeat: int
    session: int
    prompt_tokens: int
    keeps: str = ""  # what it has in common with the model's own answer; see System
    context: int = 0  # tokens that every prompt was cut to, if it was
    tokens: int = 0
    first_tokens: int = 0
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    total_seconds: float | None = None
    steps: int | None = None
    tokens_per_step: float | None = None
    drafted: int | None = None
    drafted_by_source: dict[str, int] | None = None
    accepted_by_source: dict[str, int] | None = None
    accepted_by_position: dict[str, int] | None = None  # "1" is the first token of a draft
    finish_reasons: list[str] = field(default_factory=list)
    output: str = ""  # hash of the token ids
    replies: list[str] | None = None  # to follow-ups: what gold is compared with
    read_tokens: int | None = None  # where prompts were shortened
    load_before: float = 0.0
    date: str = ""
    error: str | None = None

    @property
    def key(self) -> Key:
        """What makes a measurement unique in its file."""
        cell = self.temperature, self.batch, self.context
        return tuple(self.question_ids), self.system, *cell, self.repeat


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as every system read it."""

    category: str
    token_ids: list[int]


Reading = tuple[int, int, bool]  # a prompt's number, its context, whether it was shortened


@dataclass(frozen=True, slots=True)
class Likelihood:
    """log p of a gold answer after a prompt, and how many tokens it has."""

    number: int
    context: int
    shortened: bool
    tokens: int
    log_likelihood: float

    @property
    def key(self) -> Reading:
        """What makes it unique in its file."""
        return self.number, self.context, self.shortened

    @property
    def per_token(self) -> float:
        """Mean log p of a token."""
        return self.log_likelihood / self.tokens


@dataclass(slots=True)
class Results:
    """What a result file holds; of several answers with one key the last counts."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)  # by system, the last
    answers: dict[Key, Answer] = field(default_factory=dict)
    token_ids: dict[str, list[list[int]]] = field(default_factory=dict)  # by hash
    texts: dict[str, list[str]] = field(default_factory=dict)  # by hash
    prompts: dict[tuple[int, int], Asked] = field(default_factory=dict)  # by number and context
    gold: dict[int, Gold] = field(default_factory=dict)  # by a prompt's number
    likelihoods: dict[Reading, Likelihood] = field(default_factory=dict)

    def done(self) -> set[Key]:
        """Measurements that need not be made again."""
        return {key for key, answer in self.answers.items() if answer.error is None}


def output_hash(token_ids: list[list[int]]) -> str:
    """A short name for an answer's tokens."""
    return hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:16]


def read_results(path: Path) -> Results:
    """Everything in a file; a last line cut short by an interruption is passed over."""
    results = Results()
    read_rows(path, lambda row: _take(results, row))
    if results.answers and not results.sessions:
        raise InputError(f"{path} has no header; give a file written by graft bench")
    return results


def read_rows(path: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Hand every whole line over; one that `take` cannot use is refused by its number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read; give a file written by graft bench") from error
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}, line {number} was not written by this version of graft bench"
            ) from None


def _take(results: Results, row: dict[str, Any]) -> None:
    kind = row.pop("record")
    if kind == "header":
        if row["format"] != FORMAT:
            raise ValueError(row["format"])
        results.sessions.append(row)
    elif kind == "worker":
        results.workers.update({name: row for name in row["systems"]})
    elif kind == "answer":
        ids, texts = row.pop("token_ids", None), row.pop("texts", None)
        answer = Answer(**row)
        results.answers[answer.key] = answer
        if ids is not None:
            results.token_ids[answer.output] = ids
        if texts is not None:
            results.texts[answer.output] = texts
    elif kind == "prompt":
        asked = Asked(row["category"], _unpacked(row["tokens"]))
        results.prompts[row["number"], row["context"]] = asked
    elif kind == "gold":
        results.gold[row["number"]] = Gold(row["kind"], tuple(row["references"]))
    elif kind == "likelihood":
        found = Likelihood(**row)
        results.likelihoods[found.key] = found
    else:
        raise ValueError(kind)


class Writer:
    """Appends lines to a result file that this process alone holds."""

    def __init__(self, file: IO[str], path: Path, known: set[str]) -> None:
        self._file, self._path, self._known = file, path, known

    def header(self, header: dict[str, Any]) -> None:
        """Begin a session."""
        self._write({"record": "header", "format": FORMAT, **header})

    def worker(self, systems: list[str], about: dict[str, Any]) -> None:
        """A process was started for these systems."""
        self._write({"record": "worker", "systems": systems, **about})

    def prompt(self, number: int, context: int, asked: Asked) -> None:
        """A prompt at one context."""
        cell = {"number": number, "context": context, "category": asked.category}
        self._write({"record": "prompt", **cell, "tokens": _packed(asked.token_ids)})

    def gold(self, number: int, gold: Gold) -> None:
        """What a good answer to a prompt says."""
        self._write({"record": "gold", "number": number, **asdict(gold)})

    def likelihood(self, likelihood: Likelihood) -> None:
        """How likely gold is."""
        self._write({"record": "likelihood", **asdict(likelihood)})

    def answer(
        self,
        answer: Answer,
        token_ids: list[list[int]] | None = None,
        texts: list[str] | None = None,
    ) -> None:
        """A measurement; its tokens and texts are left out where the file has them."""
        row = {"record": "answer", **asdict(answer)}
        empty = {each.name for each in fields(answer) if getattr(answer, each.name) is None}
        row = {name: value for name, value in row.items() if name not in empty}
        if token_ids is not None and answer.output not in self._known:
            row |= {"token_ids": token_ids} | ({"texts": texts} if texts else {})
            self._known.add(answer.output)
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        write_row(self._file, self._path, row)


def _packed(tokens: list[int]) -> str:
    """Token ids in a quarter of the room that digits take."""
    return base64.b64encode(zlib.compress(np.array(tokens, "<i4").tobytes(), 9)).decode()


def _unpacked(text: str) -> list[int]:
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4").tolist()
    except zlib.error as error:
        raise ValueError(str(error)) from error


def write_row(file: IO[str], path: Path, row: dict[str, Any]) -> None:
    """One line, on its way to the disk before anything else is measured."""
    try:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")
        file.flush()
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def open_results(path: Path) -> Iterator[tuple[Results, Writer]]:
    """What a file holds, and a writer to go on with it; nobody else can meanwhile."""
    with held(path) as file:
        results = read_results(path)
        yield results, Writer(file, path, set(results.token_ids))


@contextmanager
def held(path: Path) -> Iterator[IO[str]]:
    """A file of lines to append to, for this process alone.

    Half a line at its end, left by an interruption, is cut off; a file without lines is deleted.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        _hold(file, path)
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        try:
            yield file
        finally:
            if path.stat().st_size == 0:  # refused before anything was measured
                path.unlink()


def _hold(file: IO[str], path: Path) -> None:
    """Until the file is closed."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"another run is writing to {path}; wait for it or name another --out"
        ) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror}); name another --out")
