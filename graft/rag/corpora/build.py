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

import numpy as np

from graft.errors import InputError
from graft.home import atomic_folder, lock
from graft.rag.corpora.engines import BM25, About, Encoders, describe, load_encoders, searched_text
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
from graft.rag.corpus import Passage
from graft.rag.corpus_files import Known, read_passages
from graft.retrieval.bm25 import Bm25Index
from graft.retrieval.retriever import Encoder

BATCH = 256  # passages
Report = Callable[[int, str], None]  # passages so far, stage


def build(
    folder: Path, files: Iterable[str], engines: tuple[str, ...], words: int, report: Report
) -> int:
    """Build a corpus of files, replacing an existing one; returns the number of passages."""
    about, encoders = describe(engines, words)
    with _writing(folder) as temporary:
        writer = _Writer(temporary, about, encoders, report)
        return writer.add(read_passages(files, words)).passages


def add(folder: Path, files: Iterable[str], report: Report) -> int:
    """Add files with the corpus' own settings; returns the number of new passages."""
    with _writing(folder) as temporary:
        manifest = read_manifest(folder)
        about, texts = manifest.about, Texts(folder)
        encoders = load_encoders(about, str(folder))
        for file in (TEXT, *(vectors_file(about.engines.index(name)) for name in encoders)):
            shutil.copyfile(folder / file, temporary / file)
        writer = _Writer(temporary, about, encoders, report, np.load(folder / PLACES).tolist())
        passages = read_passages(files, about.words, Known(texts))
        return writer.add(passages).passages - manifest.passages


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
class _Writer:
    """Writes a corpus; `places` are the offsets of the passages that the folder has already."""

    folder: Path
    about: About
    encoders: Encoders
    report: Report
    places: list[int] = field(default_factory=lambda: [0])

    def add(self, passages: Iterable[Passage]) -> Manifest:
        """Add passages, index them and write the manifest."""
        known = len(self.places) - 1
        self._write(passages)
        count = len(self.places) - 1
        if not count:
            raise InputError("the corpus has no passages; name files that hold some")
        np.save(self.folder / PLACES, np.array(self.places, np.int64))
        self.report(count, "indexing")
        for number, name in enumerate(self.about.engines):
            if name == BM25:
                Bm25Index.of(self._texts()).save(self.folder / LEXICAL)
            else:
                self._encode(vectors_file(number), self.encoders[name], known)
        return write_manifest(self.folder, self.about, count)

    def _write(self, passages: Iterable[Passage]) -> None:
        with (self.folder / TEXT).open("ab") as file:
            for each in passages:
                row = {"id": each.id, "title": each.title, "text": each.text}
                row |= {"source": each.source} if each.source else {}
                line = json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
                file.write(line)
                self.places.append(self.places[-1] + len(line))
                if len(self.places) % BATCH == 0:
                    self.report(len(self.places) - 1, "reading")

    def _encode(self, name: str, encoder: Encoder, known: int) -> None:
        """Append the vectors of the passages after the `known` ones."""
        texts = islice(self._texts(), known, None)
        with (self.folder / name).open("ab") as file:
            while batch := list(islice(texts, BATCH)):
                file.write(np.ascontiguousarray(encoder.encode_passages(batch), "<f4").data)
                known += len(batch)
                self.report(known, "indexing")

    def _texts(self) -> Iterator[str]:
        return (searched_text(each.title, each.text) for each in Texts(self.folder))


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
