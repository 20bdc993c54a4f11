"""Building a datastore: documents in, shards out, safe to interrupt anywhere.

A long text is stored in parts, cut where a line ends. Each part is known by a digest of its
characters: one that is in the store already is not stored again, and this is also how interrupted
work goes on, since the same command skips all that its predecessor finished. Text is turned into
tokens in batches, on all cores. Every `PIECE` tokens a shard is written; at the end small shards
are merged into larger ones, for a search visits them all.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.match.store_files import (
    DIGEST_BYTES,
    Manifest,
    Shard,
    check_tokenizer,
    delete_unnamed,
    is_store,
    map_shard,
    open_digests,
    read_digests,
    read_manifest,
    with_shards,
    write_manifest,
    write_shard,
)
from graft.match.suffix_sort import suffix_array

PART = 1 << 18  # characters of a document that are stored together
BATCH = 1 << 22  # characters that are tokenized at a time, or as many as a shard has tokens
PIECE = 1 << 23  # tokens after which work is safe
MOST_TOKENS = 1 << 26  # of a merged shard: some 800 MB of memory to sort
MOST_SHARDS = 8  # that additions leave behind

Encode = Callable[[list[str]], list[np.ndarray]]  # texts to ids, without special tokens


@dataclass(slots=True)
class Progress:
    """What a command has done so far."""

    documents: int = 0
    duplicates: int = 0
    tokens: int = 0


class StoreWriter:
    """Adds to a store on behalf of whoever holds its lock (`store_files.writing`)."""

    def __init__(self, folder: Path, manifest: Manifest, *, most_tokens: int = MOST_TOKENS) -> None:
        self.folder, self.manifest = folder, manifest
        self.progress = Progress()
        self._most, self._piece = most_tokens, min(PIECE, most_tokens)
        self._known = open_digests(folder, manifest)
        self._texts: list[np.ndarray] = []
        self._digests: list[bytes] = []
        self._waiting = 0

    def add(self, texts: Iterable[str], encode: Encode, report: Callable[[Progress], None]) -> None:
        """Add documents, but for those the store has; told of progress after every batch."""
        for batch in _batches(self._new_parts(texts), min(BATCH, self._piece)):
            ids = encode([part for part, _ in batch])
            for tokens, (_, digest) in zip(ids, batch, strict=True):
                self._take(tokens, digest)
            report(self.progress)
        self._write()
        report(self.progress)

    def finish(self) -> None:
        """Say that all documents of the command that began the store are in it."""
        self._replace_manifest(replace(self.manifest, complete=True))

    def merge(self, *, beyond: int = 1) -> int:
        """Merge shards, where there are more than `beyond`, as far as fits; how many are gone."""
        before = len(self.manifest.shards)
        groups = _merges(self.manifest.shards, self._most) if before > beyond else []
        for group in groups:
            texts = [map_shard(self.folder, self.manifest, shard).text for shard in group]
            digests = b"".join(read_digests(self.folder, shard) for shard in group)
            merged = self._make_shard(texts, digests)
            self._replace_manifest(with_shards(self.manifest, merged, instead_of=group))
        return before - len(self.manifest.shards)

    def _new_parts(self, texts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        for text in texts:
            for part in _parts(text):
                digest = hashlib.blake2b(part.encode(errors="replace"), digest_size=DIGEST_BYTES)
                if digest.digest() in self._known:
                    self.progress.duplicates += 1
                else:
                    self._known.add(digest.digest())
                    yield part, digest.digest()

    def _take(self, tokens: np.ndarray, digest: bytes) -> None:
        """Keep a document for the next shard; one without tokens has nothing to say."""
        if len(tokens) == 0:
            return
        if tokens.max() >= self.manifest.vocabulary:
            raise InputError(f"token {tokens.max()} is not in the datastore's vocabulary")
        self._texts += [tokens.astype(self.manifest.dtype), self._border()]
        self._digests.append(digest)
        self._waiting += len(tokens) + 1
        self.progress.documents += 1
        self.progress.tokens += len(tokens)
        if self._waiting >= self._piece:
            self._write()

    def _write(self) -> None:
        """Make a shard of what waits."""
        if self._digests:
            shard = self._make_shard(self._texts, b"".join(self._digests))
            self._replace_manifest(with_shards(self.manifest, shard))
        self._texts, self._digests, self._waiting = [], [], 0

    def _make_shard(self, texts: list[np.ndarray], digests: bytes) -> Shard:
        text = np.concatenate(texts)
        suffixes = suffix_array(text, self.manifest.vocabulary)
        return write_shard(self.folder, text, suffixes, digests)

    def _replace_manifest(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self.manifest = manifest
        delete_unnamed(self.folder, manifest)

    def _border(self) -> np.ndarray:
        return np.array([self.manifest.vocabulary], dtype=self.manifest.dtype)


def begin_store(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest of a new store, or of one whose building was interrupted."""
    if is_store(folder):
        found = read_manifest(folder)
        if found.complete:
            raise InputError(
                f"there is a datastore in {folder} already; `graft index add` adds to it"
            )
        check_tokenizer(folder, found, manifest.tokenizer)
        return found
    if any(not file.name.startswith(".") for file in folder.iterdir()):
        raise InputError(f"{folder} has other files in it; name a new folder for the datastore")
    write_manifest(folder, manifest)
    return manifest


def _parts(text: str) -> Iterator[str]:
    """The text, cut behind the last line end within `PART` characters, or there if it has none."""
    start = 0
    while len(text) - start > PART:
        stop = text.rfind("\n", start, start + PART) + 1 or start + PART
        yield text[start:stop]
        start = stop
    if text[start:].strip():
        yield text[start:]


def _batches(parts: Iterator[tuple[str, bytes]], most: int) -> Iterator[list[tuple[str, bytes]]]:
    """Lists of parts of about `most` characters together."""
    while True:
        batch, size = [], 0
        for part in parts:
            batch.append(part)
            size += len(part[0])
            if size >= most:
                break
        if not batch:
            return
        yield batch


def _merges(shards: Iterable[Shard], most: int) -> list[tuple[Shard, ...]]:
    """Groups of shards, the smallest together, of at most `most` tokens each."""
    left, groups = iter(sorted(shards, key=lambda shard: shard.tokens)), []
    group: list[Shard] = list(islice(left, 1))
    for shard in left:
        if sum(each.tokens for each in group) + shard.tokens > most:
            groups.append(tuple(group))
            group = []
        group.append(shard)
    return [tuple(each) for each in (*groups, group) if len(each) > 1]
