"""Training data: rows, tokenised and packed once and cached in a file; some are held out."""

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

FORMAT = 2
MAX_HELD_OUT = 64  # rows


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training rows and held-out rows; `frequencies` [V] counts the ids in the loss."""

    train: Rows
    held_out: Rows
    frequencies: np.ndarray

    def draft_ids(self, count: int) -> np.ndarray:
        """The most frequent ids in ascending order; ties go to the lower id."""
        order = np.argsort(-self.frequencies, kind="stable")
        return np.sort(order[: count or len(order)]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DataOptions:
    """What the rows depend on, apart from files and tokenizer."""

    length: int
    field: str
    all_tokens: bool
    held_out: float
    exclude: str = ""


def prepare(paths: list[str], tokenizer: Any, options: DataOptions, vocabulary: int) -> Dataset:  # noqa: ANN401
    """The rows of the files, from the cache if they were built before."""
    file = home() / "training" / f"rows-{_key(paths, tokenizer, options)}.safetensors"
    if not file.is_file():
        _write(file, _make(paths, tokenizer, options))
    return _read(file, vocabulary)


def files_of(paths: Iterable[str]) -> list[Path]:
    """All files that paths, folders and patterns name; InputError for a missing one."""
    files = [file.path for file in find_files(paths)]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} does not exist; --data names files, folders or patterns")
    return files


def rows_at(place: int, count: int, rows: int, seed: int) -> np.ndarray:
    """The indices of the next `count` rows; every epoch has its own permutation."""
    found = []
    while count:
        epoch, first = divmod(place, rows)
        taken = np.random.default_rng([seed, epoch]).permutation(rows)[first : first + count]
        found.append(taken)
        place, count = place + len(taken), count - len(taken)
    return np.concatenate(found)


def _make(paths: list[str], tokenizer: Any, options: DataOptions) -> tuple[Rows, Rows]:  # noqa: ANN401
    reader = Reader(
        tokenizer,
        field=options.field,
        all_tokens=options.all_tokens,
        overlap=Overlap.with_files([options.exclude]) if options.exclude else None,
    )
    every = max(2, round(1 / options.held_out))
    aside: list[Example] = []
    rows = pack(_without(reader.read(paths), every, aside), options.length)
    held_out = pack(aside, options.length)
    if not len(rows) or not len(held_out):
        raise InputError(
            f"too little training data in {', '.join(paths)}: "
            f"{len(rows)} rows of {options.length} tokens, {reader.unusable} unusable chats"
        )
    return rows, held_out


def _without(examples: Iterable[Example], every: int, aside: list[Example]) -> Iterator[Example]:
    """All but every `every`-th example, which goes to `aside`."""
    for number, example in enumerate(examples):
        if number % every == 0:
            aside.append(example)
        else:
            yield example


def _key(paths: list[str], tokenizer: Any, options: DataOptions) -> str:  # noqa: ANN401
    excluded = [options.exclude] if options.exclude else []
    files = [*files_of(paths), *files_of(excluded)]
    seen = [[str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    values = [options.length, options.field, options.all_tokens, options.held_out, len(excluded)]
    content = [FORMAT, tokenizer_fingerprint(tokenizer), tokenizer.chat_template, seen, values]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def _write(file: Path, both: tuple[Rows, Rows]) -> None:
    arrays = {}
    for name, rows in zip(("train", "held_out"), both, strict=True):
        arrays[f"{name}.tokens"], arrays[f"{name}.documents"] = rows.tokens, rows.documents
        arrays[f"{name}.loss_mask"] = rows.loss_mask
    with atomic_file(file, needed=sum(array.nbytes for array in arrays.values())) as temporary:
        save_file(arrays, temporary)


def _read(file: Path, vocabulary: int) -> Dataset:
    arrays = load_file(file)
    train, held_out = (
        Rows(arrays[f"{n}.tokens"], arrays[f"{n}.documents"], arrays[f"{n}.loss_mask"])
        for n in ("train", "held_out")
    )
    held_out = Rows(
        *(each[:MAX_HELD_OUT] for each in (held_out.tokens, held_out.documents, held_out.loss_mask))
    )
    counts = np.bincount(train.tokens[train.loss_mask], minlength=vocabulary)
    return Dataset(train, held_out, counts)
