"""Build a corpus on disk, or add to one: the old one stays until the new one is whole."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from graft.errors import InputError
from graft.home import atomic_folder, lock
from graft.rag.corpora.engines import (
    BM25,
    About,
    check_encoders,
    describe,
    load_encoders,
    searched_text,
)
from graft.rag.corpora.folder import (
    LEXICAL,
    PLACES,
    TEXT,
    Manifest,
    Texts,
    is_corpus,
    read_manifest,
    vectors_file,
    write_manifest,
)
from graft.rag.corpora.lexical import LexicalWriter
from graft.rag.corpora.vectors import VectorWriter
from graft.rag.corpus import Passage
from graft.rag.corpus_files import Known, read_passages

BATCH = 256  # passages
Report = Callable[[int, str], None]  # passages so far, and what is done now


class Writer(Protocol):
    """Of one index."""

    def add(self, texts: list[str]) -> None:
        """More passages."""

    def finish(self) -> None:
        """All passages are there."""


def build(
    folder: Path, files: Iterable[str], engines: tuple[str, ...], words: int, report: Report
) -> Manifest:
    """A new corpus of files, in place of one that may be there."""
    encoders = load_encoders(engines)
    about = describe(engines, words, encoders)
    with _writing(folder) as temporary:
        making = _Making(temporary, report)
        for number, name in enumerate(engines):
            if name == BM25:
                making.writers.append(LexicalWriter(temporary / LEXICAL))
            else:
                file = temporary / vectors_file(number)
                making.writers.append(VectorWriter(file, encoders[name]))
        making.take(read_passages(files, words))
        return making.finish(about)


def add(folder: Path, files: Iterable[str], report: Report) -> tuple[Manifest, int]:
    """The corpus with more files, cut and searched as it is; and how many passages are new."""
    with _writing(folder) as temporary:
        manifest = read_manifest(folder)
        about, texts = manifest.about, Texts(folder)
        encoders = load_encoders(about.engines)
        check_encoders(about, encoders, str(folder))
        making = _Making(temporary, report, len(texts))
        shutil.copyfile(folder / TEXT, temporary / TEXT)
        making.places = np.load(folder / PLACES).tolist()
        for number, name in enumerate(about.engines):
            if name == BM25:
                writer = LexicalWriter(temporary / LEXICAL)
                writer.add(searched_text(each.title, each.text) for each in texts)
            else:
                file = vectors_file(number)
                writer = VectorWriter(temporary / file, encoders[name], folder / file)
            making.writers.append(writer)
        making.take(read_passages(files, about.words, Known(texts)))
        return making.finish(about), making.count - manifest.passages


@dataclass(slots=True)
class _Making:
    """A corpus while it is made."""

    folder: Path
    report: Report
    count: int = 0
    places: list[int] = field(default_factory=lambda: [0])
    writers: list[Writer] = field(default_factory=list)

    def take(self, passages: Iterable[Passage]) -> None:
        """Write passages and index them, some at a time."""
        with (self.folder / TEXT).open("ab") as file:
            rest = iter(passages)
            while some := list(islice(rest, BATCH)):
                self._write(file, some)
                texts = [searched_text(each.title, each.text) for each in some]
                for writer in self.writers:
                    writer.add(texts)
                self.count += len(some)
                self.report(self.count, "reading")

    def _write(self, file: IO[bytes], passages: Iterable[Passage]) -> None:
        for each in passages:
            row = {"id": each.id, "title": each.title, "text": each.text}
            line = json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
            file.write(line)
            self.places.append(self.places[-1] + len(line))

    def finish(self, about: About) -> Manifest:
        """Finish the indexes and say what is there."""
        if not self.count:
            raise InputError("the corpus has no passages; name files that hold some")
        self.report(self.count, "indexing")
        np.save(self.folder / PLACES, np.array(self.places, np.int64))
        for writer in self.writers:
            writer.finish()
        return write_manifest(self.folder, about, self.count)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """A folder to fill, by one process at a time; what is there and is no corpus stays."""
    folder = folder.absolute()
    if folder.exists() and not is_corpus(folder) and not _empty(folder):
        raise InputError(f"{folder} exists and is not a corpus; name another folder")
    with lock(f"corpus-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"):
        with atomic_folder(folder) as temporary:
            yield temporary


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
