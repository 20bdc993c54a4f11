"""The files of a datastore: shards that never change, and a manifest that names those in use.

A shard is three files: its text (u16 or u32 ids, each document ended by the border), its suffix
array (u32) and a digest of every document. They are written whole before the manifest that names
them replaces the old one, so a killed process leaves the store unchanged, and readers never wait.
The next writer deletes files that no manifest names. Sizes are checked when a store is opened,
checksums by `check_files`.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graft.errors import InputError
from graft.home import atomic_file

FORMAT = 1
MANIFEST = "store.json"
LOCK = ".lock"
TEXT, SUFFIXES, DIGESTS = ".tokens", ".suffixes", ".documents"
DIGEST_BYTES = 16
LARGEST_U16 = 0xFFFF


@dataclass(frozen=True, slots=True)
class Shard:
    """`tokens` counts the borders; `checksums` has the SHA-256 of each file by its ending."""

    name: str
    tokens: int
    documents: int
    checksums: dict[str, str]

    def sizes(self, width: int) -> dict[str, int]:
        """Bytes of each file by its ending; an id takes `width`."""
        return {
            TEXT: self.tokens * width,
            SUFFIXES: (self.tokens - self.documents) * 4,
            DIGESTS: self.documents * DIGEST_BYTES,
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a store. `complete` is false while the command that builds it runs."""

    tokenizer: str
    model: str
    vocabulary: int
    complete: bool = False
    shards: tuple[Shard, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        """Of the ids, the border (the id `vocabulary`) included; little endian everywhere."""
        return np.dtype("<u2" if self.vocabulary <= LARGEST_U16 else "<u4")

    @property
    def tokens(self) -> int:
        """Of all documents, without borders."""
        return sum(shard.tokens - shard.documents for shard in self.shards)

    @property
    def documents(self) -> int:
        """The number of documents; a long one counts once for each of its parts."""
        return sum(shard.documents for shard in self.shards)

    @property
    def bytes(self) -> int:
        """On disk."""
        width = self.dtype.itemsize
        return sum(sum(shard.sizes(width).values()) for shard in self.shards)


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """A shard's text and suffix array, memory-mapped."""

    text: np.ndarray
    suffixes: np.ndarray


def is_store(folder: Path) -> bool:
    """Whether the folder has a store, complete or not."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest; InputError where it is missing or damaged."""
    file = folder / MANIFEST
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(
                f"the datastore {folder} has format {content['format']}, this version of Graft "
                f"reads {FORMAT}: build it anew"
            )
        shards = tuple(Shard(**each) for each in content.pop("shards"))
        del content["format"]
        return Manifest(**content, shards=shards)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder} is not a datastore; make one with: graft index build {folder} FILES"
        ) from None
    except OSError as error:
        raise InputError(f"the datastore {folder} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is damaged ({error}): build the datastore anew") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a store."""
    content = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1)
    with atomic_file(folder / MANIFEST) as temporary:
        temporary.write_text(content, encoding="utf-8")


def check_tokenizer(folder: Path, manifest: Manifest, fingerprint: str | None) -> None:
    """Refuse a store whose ids mean other tokens."""
    if fingerprint not in (None, manifest.tokenizer):
        raise InputError(
            f"the datastore {folder} was made with the tokenizer of {manifest.model}, which is "
            "another one: use that model, or build a datastore with --model"
        )


def open_arrays(folder: Path, fingerprint: str | None) -> tuple[Manifest, list[ShardArrays]]:
    """Map a store's shards; the new ones if another process merges them meanwhile."""
    while True:
        manifest = read_manifest(folder)
        check_tokenizer(folder, manifest, fingerprint)
        try:
            return manifest, [map_shard(folder, manifest, shard) for shard in manifest.shards]
        except FileNotFoundError as error:
            if read_manifest(folder) == manifest:
                raise InputError(
                    f"the datastore {folder} lacks {Path(error.filename).name}: build it anew"
                ) from None


def map_shard(folder: Path, manifest: Manifest, shard: Shard) -> ShardArrays:
    """Map a shard's files after checking their sizes."""
    for ending, size in shard.sizes(manifest.dtype.itemsize).items():
        file = folder / f"{shard.name}{ending}"
        found = file.stat().st_size
        if found != size:
            raise InputError(
                f"{file} has {found:,} bytes instead of {size:,}: build the datastore anew"
            )
    text = np.memmap(folder / f"{shard.name}{TEXT}", manifest.dtype, "r")
    suffixes = np.memmap(folder / f"{shard.name}{SUFFIXES}", "<u4", "r")
    return ShardArrays(np.asarray(text), np.asarray(suffixes))


def read_digests(folder: Path, shard: Shard) -> bytes:
    """The digests of a shard's documents, one after the other."""
    return (folder / f"{shard.name}{DIGESTS}").read_bytes()


def write_shard(folder: Path, text: np.ndarray, suffixes: np.ndarray, digests: bytes) -> Shard:
    """Write a shard's files, whole and on disk; no manifest names them yet."""
    parts = {TEXT: text, SUFFIXES: suffixes, DIGESTS: np.frombuffer(digests, np.uint8)}
    checksums = {ending: hashlib.sha256(part.data).hexdigest() for ending, part in parts.items()}
    name = hashlib.sha256("".join(checksums.values()).encode()).hexdigest()[:16]
    for ending, part in parts.items():
        with atomic_file(folder / f"{name}{ending}", needed=part.nbytes) as temporary:
            temporary.write_bytes(part.data)  # part.tofile would not say that the disk is full
    return Shard(name, len(text), len(digests) // DIGEST_BYTES, checksums)


def check_files(folder: Path, manifest: Manifest) -> Iterator[Shard]:
    """Compare every file with its checksum; yields each shard that is intact."""
    for shard in manifest.shards:
        map_shard(folder, manifest, shard)
        for ending, checksum in shard.checksums.items():
            file = folder / f"{shard.name}{ending}"
            with file.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != checksum:
                    raise InputError(
                        f"{file} is damaged, its checksum is wrong: build the datastore anew"
                    )
        yield shard


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of the only writer; deletes files that killed writers left."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another process is writing to {folder}: wait for it") from None
    except OSError as error:
        raise InputError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        if is_store(folder):
            delete_unnamed(folder, read_manifest(folder))
        yield
    finally:
        lock.release()


def delete_unnamed(folder: Path, manifest: Manifest) -> None:
    """Delete shard and temporary files that the manifest does not name."""
    named = {shard.name for shard in manifest.shards}
    for file in folder.iterdir():
        ours = file.suffix in (TEXT, SUFFIXES, DIGESTS) or file.name.startswith(".tmp-")
        if ours and file.stem not in named:
            file.unlink(missing_ok=True)


def with_shards(manifest: Manifest, *shards: Shard, instead_of: tuple[Shard, ...] = ()) -> Manifest:
    """The same store with more shards, less those they replace."""
    kept = tuple(shard for shard in manifest.shards if shard not in instead_of)
    return replace(manifest, shards=(*kept, *shards))


def open_digests(folder: Path, manifest: Manifest) -> set[bytes]:
    """The digests of all documents in the store."""
    known: set[bytes] = set()
    for shard in manifest.shards:
        map_shard(folder, manifest, shard)
        content = read_digests(folder, shard)
        known.update(content[at : at + DIGEST_BYTES] for at in range(0, len(content), DIGEST_BYTES))
    return known


def describe(manifest: Manifest) -> dict[str, Any]:
    """The contents of the store, for people and scripts."""
    return {
        "format": FORMAT,
        "model": manifest.model,
        "tokenizer": manifest.tokenizer,
        "vocabulary": manifest.vocabulary,
        "id_bytes": manifest.dtype.itemsize,
        "complete": manifest.complete,
        "shards": len(manifest.shards),
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "bytes": manifest.bytes,
    }
