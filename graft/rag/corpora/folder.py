"""The files of a built corpus: passages as JSON lines with their offsets, indexes, a manifest.

    corpus.json      build settings, number of passages, size of every file
    passages.jsonl   {"id", "title", "text", "source"}, one line per passage
    places.npy       offsets of the lines and the end of the last: int64 [passages + 1]
    bm25/            an index of bm25s
    vectors-N.f32    unit vectors of the N-th engine: float32 [passages, size]

Opening a corpus maps them into memory.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.rag.corpora.engines import About
from graft.rag.corpus import Passage

FORMAT = 1
MANIFEST = "corpus.json"
TEXT, PLACES = "passages.jsonl", "places.npy"
LEXICAL = "bm25"


@dataclass(frozen=True, slots=True)
class Manifest:
    """`files` has the size of every file by its name in the folder."""

    about: About
    passages: int
    files: dict[str, int]

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(self.files.values())


def is_corpus(folder: Path) -> bool:
    """Whether the folder has a corpus."""
    return (folder / MANIFEST).is_file()


def vectors_file(engine: int) -> str:
    """The file of an engine's vectors."""
    return f"vectors-{engine}.f32"


def write_manifest(folder: Path, about: About, passages: int) -> Manifest:
    """Write the manifest of a complete folder."""
    files = {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    content = {"format": FORMAT, **asdict(about), "passages": passages, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return Manifest(about, passages, files)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus; InputError if it is not one, incomplete or damaged."""
    again = f"build it again with: graft index passages {folder} FILES"
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(
                f"the corpus {folder} has format {content['format']}, this version of Graft reads "
                f"{FORMAT}: {again}"
            )
        files = {str(name): int(size) for name, size in content["files"].items()}
        manifest = Manifest(About.from_dict(content), int(content["passages"]), files)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder} is not a corpus; make one with: graft index passages {folder} FILES"
        ) from None
    except OSError as error:
        raise InputError(f"the corpus {folder} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / MANIFEST} is damaged ({error}): {again}") from error
    for name, size in files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            has = "is missing" if found is None else f"has {found:,} bytes instead of {size:,}"
            raise InputError(f"{file} {has}: {again}")
    return manifest


class Texts:
    """The passages of a corpus by number, read from the memory map."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = np.load(folder / PLACES, mmap_mode="r")
        self._bytes = np.memmap(folder / TEXT, np.uint8, "r")

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, number: int) -> Passage:
        start, end = self._places[number : number + 2].tolist()
        try:
            return Passage(**json.loads(self._bytes[start:end].tobytes()))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"passage {number + 1} of the corpus {self._folder} is damaged: build it again "
                f"with: graft index passages {self._folder} FILES"
            ) from error

    def __iter__(self) -> Iterator[Passage]:
        return (self[number] for number in range(len(self)))
