"""Build a datastore: documents in, shards out, safe to interrupt anywhere.

A long text is stored in parts, cut at line ends. A part whose digest is already in the store is
skipped, so an interrupted command resumes when it is run again. Text is tokenized in batches, on
all cores. A shard is written every `SHARD_TOKENS` tokens; at the end small shards are merged, as a
search visits them all.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from graft.errors import InputError
from graft.match.store_files import (
    DIGEST_BYTES,
    Manifest,
    Shard,
    ShardArrays,
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
SHARD_TOKENS = 1 << 23  # tokens after which a shard is written
MAX_TOKENS = 1 << 26  # of a merged shard: sorting it takes 800 MB of memory
MAX_SHARDS = 8  # after additions

Encode = Callable[[list[str]], list[np.ndarray]]  # texts to ids, without special tokens


@dataclass(slots=True)
class Progress:
    """Counts of a running command."""

    documents: int = 0
    duplicates: int = 0
    tokens: int = 0


class StoreWriter:
    """Adds to a store; the caller holds its lock (`store_files.writing`)."""

    def __init__(self, folder: Path, manifest: Manifest, *, max_tokens: int = MAX_TOKENS) -> None:
        self.folder, self.manifest = folder, manifest
        self.progress = Progress()
        self._max_tokens, self._shard_tokens = max_tokens, min(SHARD_TOKENS, max_tokens)
        self._known = open_digests(folder, manifest)
        self._texts: list[np.ndarray] = []
        self._digests: list[bytes] = []
        self._pending = 0

    def add(self, texts: Iterable[str], encode: Encode, report: Callable[[Progress], None]) -> None:
        """Add documents that the store does not have; calls `report` after every batch."""
        for batch in _batches(self._new_parts(texts), min(BATCH, self._shard_tokens)):
            ids = encode([part for part, _ in batch])
            for tokens, (_, digest) in zip(ids, batch, strict=True):
                self._add_tokens(tokens, digest)
            report(self.progress)
        self._write()
        report(self.progress)

    def add_tokens(self, texts: Iterable[np.ndarray]) -> None:
        """Add documents given as token ids that the store does not have."""
        for tokens in texts:
            content = tokens.astype("<u4").tobytes()
            digest = hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
            if digest in self._known:
                self.progress.duplicates += 1
            else:
                self._known.add(digest)
                self._add_tokens(tokens, digest)
        self._write()

    def finish(self) -> None:
        """Mark the store as complete."""
        self._replace_manifest(replace(self.manifest, complete=True))

    def merge(self, *, beyond: int = 1) -> int:
        """Merge shards up to the maximum size if there are more than `beyond`; returns how many
        fewer there are."""
        before = len(self.manifest.shards)
        groups = _merges(self.manifest.shards, self._max_tokens) if before > beyond else []
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

    def _add_tokens(self, tokens: np.ndarray, digest: bytes) -> None:
        """Keep a document for the next shard; one without tokens is skipped."""
        if len(tokens) == 0:
            return
        if tokens.max() >= self.manifest.vocabulary:
            raise InputError(f"token {tokens.max()} is not in the datastore's vocabulary")
        border = np.array([self.manifest.vocabulary], dtype=self.manifest.dtype)
        self._texts += [tokens.astype(self.manifest.dtype), border]
        self._digests.append(digest)
        self._pending += len(tokens) + 1
        self.progress.documents += 1
        self.progress.tokens += len(tokens)
        if self._pending >= self._shard_tokens:
            self._write()

    def _write(self) -> None:
        """Write the pending documents as a shard."""
        if self._digests:
            shard = self._make_shard(self._texts, b"".join(self._digests))
            self._replace_manifest(with_shards(self.manifest, shard))
        self._texts, self._digests, self._pending = [], [], 0

    def _make_shard(self, texts: list[np.ndarray], digests: bytes) -> Shard:
        text = np.concatenate(texts)
        suffixes = suffix_array(text, self.manifest.vocabulary)
        return write_shard(self.folder, text, suffixes, digests)

    def _replace_manifest(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self.manifest = manifest
        delete_unnamed(self.folder, manifest)


def shard_in_memory(
    manifest: Manifest, texts: Iterable[Sequence[int] | np.ndarray], *, threads: int | None = None
) -> ShardArrays:
    """A shard of these texts that is not written; at least one has tokens."""
    parts = [np.append(text, manifest.vocabulary) for text in texts if len(text)]
    text = np.concatenate(parts).astype(manifest.dtype)
    suffixes = suffix_array(text, manifest.vocabulary, threads=threads)
    for array in (text, suffixes):
        array.flags.writeable = False  # as mapped files are
    return ShardArrays(text, suffixes)


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
    """The text, cut behind the last line end within `PART` characters, or after `PART`."""
    start = 0
    while len(text) - start > PART:
        stop = text.rfind("\n", start, start + PART) + 1 or start + PART
        yield text[start:stop]
        start = stop
    if text[start:].strip():
        yield text[start:]


def _batches(parts: Iterator[tuple[str, bytes]], limit: int) -> Iterator[list[tuple[str, bytes]]]:
    """Lists of parts with about `limit` characters in total."""
    while True:
        batch, size = [], 0
        for part in parts:
            batch.append(part)
            size += len(part[0])
            if size >= limit:
                break
        if not batch:
            return
        yield batch


def _merges(shards: Iterable[Shard], max_tokens: int) -> list[tuple[Shard, ...]]:
    """Groups of shards, the smallest together, of at most `max_tokens` tokens each."""
    left, groups = iter(sorted(shards, key=lambda shard: shard.tokens)), []
    group: list[Shard] = list(islice(left, 1))
    for shard in left:
        if sum(each.tokens for each in group) + shard.tokens > max_tokens:
            groups.append(tuple(group))
            group = []
        group.append(shard)
    return [tuple(each) for each in (*groups, group) if len(each) > 1]
