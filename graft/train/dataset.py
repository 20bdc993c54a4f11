"""What a run learns from: rows, tokenised and packed once, kept in a file; some are held out."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from graft.documents.find import find_files
from graft.documents.overlap import Overlap
from graft.errors import InputError
from graft.home import atomic_file, home
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint
from graft.train.examples import Example, Reader
from graft.train.packing import Rows, pack

FORMAT = 1
MOST_HELD_OUT = 64  # rows


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows to learn from and rows to measure with; `frequencies` [V] counts learned ids."""

    learned: Rows
    held_out: Rows
    frequencies: np.ndarray

    def draft_ids(self, count: int) -> np.ndarray:
        """The most frequent ids, the first of equal ones first."""
        order = np.argsort(-self.frequencies, kind="stable")
        return order[: count or len(order)].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the rows depend on besides files and tokenizer."""

    length: int
    field: str
    all_tokens: bool
    held_out: float
    exclude: str = ""


def prepare(paths: list[str], tokenizer: Any, wanted: Wanted, vocabulary: int) -> Dataset:  # noqa: ANN401
    """Rows of the files, out of the cache where the same were made before."""
    file = home() / "training" / f"rows-{_key(paths, tokenizer, wanted)}.safetensors"
    if not file.is_file():
        _write(file, _make(paths, tokenizer, wanted))
    return _read(file, vocabulary)


def files_of(paths: Iterable[str]) -> list[Path]:
    """All files that paths, folders and patterns name; InputError where one is not there."""
    files = [file.path for file in find_files(paths)]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} does not exist; --data names files, folders or patterns")
    return files


def rows_at(place: int, count: int, rows: int, seed: int) -> np.ndarray:
    """The numbers of the next `count` rows of an endless order; every epoch has its own."""
    found = []
    while count:
        epoch, first = divmod(place, rows)
        taken = np.random.default_rng([seed, epoch]).permutation(rows)[first : first + count]
        found.append(taken)
        place, count = place + len(taken), count - len(taken)
    return np.concatenate(found)


def _make(paths: list[str], tokenizer: Any, wanted: Wanted) -> tuple[Rows, Rows]:  # noqa: ANN401
    reader = Reader(
        tokenizer,
        field=wanted.field,
        all_tokens=wanted.all_tokens,
        overlap=Overlap.with_files([wanted.exclude]) if wanted.exclude else None,
    )
    every = max(2, round(1 / wanted.held_out))
    aside: list[Example] = []
    learned = pack(_without(reader.read(paths), every, aside), wanted.length)
    held_out = pack(aside, wanted.length)
    if not len(learned) or not len(held_out):
        raise InputError(
            f"too little to learn from in {', '.join(paths)}: "
            f"{len(learned)} rows of {wanted.length} tokens, {reader.unusable} unusable chats"
        )
    return learned, held_out


def _without(examples: Iterable[Example], every: int, aside: list[Example]) -> Iterator[Example]:
    """All but the first of every so many, which go aside."""
    for number, example in enumerate(examples):
        if number % every == 0:
            aside.append(example)
        else:
            yield example


def _key(paths: list[str], tokenizer: Any, wanted: Wanted) -> str:  # noqa: ANN401
    excluded = [wanted.exclude] if wanted.exclude else []
    files = [*files_of(paths), *files_of(excluded)]
    seen = [[str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    options = [wanted.length, wanted.field, wanted.all_tokens, wanted.held_out, len(excluded)]
    content = [FORMAT, tokenizer_fingerprint(tokenizer), tokenizer.chat_template, seen, options]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def _write(file: Path, both: tuple[Rows, Rows]) -> None:
    arrays = {}
    for name, rows in zip(("learned", "held_out"), both, strict=True):
        arrays[f"{name}.tokens"], arrays[f"{name}.documents"] = rows.tokens, rows.documents
        arrays[f"{name}.learned"] = rows.learned
    with atomic_file(file, needed=sum(array.nbytes for array in arrays.values())) as temporary:
        save_file(arrays, temporary)


def _read(file: Path, vocabulary: int) -> Dataset:
    arrays = load_file(file)
    learned, held_out = (
        Rows(arrays[f"{n}.tokens"], arrays[f"{n}.documents"], arrays[f"{n}.learned"])
        for n in ("learned", "held_out")
    )
    held_out = Rows(
        *(each[:MOST_HELD_OUT] for each in (held_out.tokens, held_out.documents, held_out.learned))
    )
    counts = np.bincount(learned.tokens[learned.learned], minlength=vocabulary)
    return Dataset(learned, held_out, counts)
