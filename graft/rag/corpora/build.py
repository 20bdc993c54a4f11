"""Build a corpus on disk, or add to one; the old one is replaced when the new one is complete.

build, add, state and listed are those of milvus.py, for a folder.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from graft.errors import InputError
from graft.home import atomic_folder, lock
from graft.rag.corpora.engines import (
    BM25,
    About,
    Encoders,
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
from graft.rag.corpora.indexes import LexicalWriter, VectorWriter
from graft.rag.corpus import Passage
from graft.rag.corpus_files import Known, read_passages

BATCH = 256  # passages
Report = Callable[[int, str], None]  # passages so far, stage


def build(
    folder: Path, files: Iterable[str], engines: tuple[str, ...], words: int, report: Report
) -> int:
    """Build a corpus of files, replacing an existing one; returns the number of passages."""
    about, encoders = describe(engines, words)
    with _writing(folder) as temporary:
        builder = _Builder(temporary, report)
        builder.open_indexes(engines, encoders)
        builder.add_passages(read_passages(files, words))
        return builder.finish(about).passages


def add(folder: Path, files: Iterable[str], report: Report) -> int:
    """Add files with the corpus' own settings; returns the number of new passages."""
    with _writing(folder) as temporary:
        manifest = read_manifest(folder)
        about, texts = manifest.about, Texts(folder)
        encoders = load_encoders(about, str(folder))
        builder = _Builder(temporary, report, len(texts))
        shutil.copyfile(folder / TEXT, temporary / TEXT)
        builder.places = np.load(folder / PLACES).tolist()
        builder.open_indexes(about.engines, encoders, folder)
        builder.add_passages(read_passages(files, about.words, Known(texts)))
        return builder.finish(about).passages - manifest.passages


def state(folder: Path) -> tuple[About, int, int]:
    """Build settings, number of passages and bytes of a corpus."""
    manifest = read_manifest(folder)
    return manifest.about, manifest.passages, manifest.bytes


def listed(folder: Path) -> list[str]:
    """The corpora in a folder, or the folder itself."""
    if is_corpus(folder):
        return [str(folder)]
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    return [str(each) for each in sorted(folder.iterdir()) if is_corpus(each)]


@dataclass(slots=True)
class _Builder:
    """A corpus while it is built."""

    folder: Path
    report: Report
    count: int = 0
    places: list[int] = field(default_factory=lambda: [0])
    writers: list[LexicalWriter | VectorWriter] = field(default_factory=list)

    def open_indexes(
        self,
        engines: tuple[str, ...],
        encoders: Encoders,
        earlier: Path | None = None,
    ) -> None:
        """Start an index for each engine, with the passages of an `earlier` corpus."""
        for number, name in enumerate(engines):
            if name == BM25:
                words = LexicalWriter(self.folder / LEXICAL)
                old = Texts(earlier) if earlier else ()
                words.add(searched_text(each.title, each.text) for each in old)
                self.writers.append(words)
            else:
                file = vectors_file(number)
                vectors = earlier / file if earlier else None
                self.writers.append(VectorWriter(self.folder / file, encoders[name], vectors))

    def add_passages(self, passages: Iterable[Passage]) -> None:
        """Write and index passages in batches."""
        with (self.folder / TEXT).open("ab") as file:
            rest = iter(passages)
            while batch := list(islice(rest, BATCH)):
                self._write(file, batch)
                texts = [searched_text(each.title, each.text) for each in batch]
                for writer in self.writers:
                    writer.add(texts)
                self.count += len(batch)
                self.report(self.count, "reading")

    def _write(self, file: IO[bytes], passages: Iterable[Passage]) -> None:
        for each in passages:
            row = {"id": each.id, "title": each.title, "text": each.text}
            line = json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
            file.write(line)
            self.places.append(self.places[-1] + len(line))

    def finish(self, about: About) -> Manifest:
        """Finish the indexes and write the manifest."""
        if not self.count:
            raise InputError("the corpus has no passages; name files that hold some")
        self.report(self.count, "indexing")
        np.save(self.folder / PLACES, np.array(self.places, np.int64))
        for writer in self.writers:
            writer.finish()
        return write_manifest(self.folder, about, self.count)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces `folder`, which must be a corpus or empty, under a lock."""
    folder = folder.absolute()
    if folder.exists() and not is_corpus(folder) and not _empty(folder):
        raise InputError(f"{folder} exists and is not a corpus; name another folder")
    with lock(f"corpus-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"):
        with atomic_folder(folder) as temporary:
            yield temporary


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
