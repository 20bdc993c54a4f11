"""A corpus of files: records that are passages, or documents that are split into passages.

A record of JSON lines, a JSON array, parquet or TSV has a `text`, optionally `title` and `id`, or
the field names of published corpora. Every other file is a document, with its first heading or
its name as title. Both are split into passages of about a hundred words. A passage without an id
gets a hash of title and text as id, so equal passages have equal ids and are stored once.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from graft.documents import Document
from graft.documents.records import Record, read_records
from graft.errors import InputError
from graft.rag.corpus import Bm25Corpus, Passage
from graft.retrieval.by_words import WORDS, by_words

TEXT_FIELDS = ("text", "contents", "content", "passage", "paragraph_text", "paragraph")
TITLE_FIELDS = ("title", "name")
ID_FIELDS = ("id", "_id", "docid", "doc_id", "pid")
ID_LETTERS = 12  # 60 bits: one collision in 5,000 corpora of 20 million passages
HEAD = 2000  # characters of a document that are searched for a heading
_HEADING = re.compile(r"^#{1,3}[ \t]+(.*\S)", re.M)


def read_corpus(paths: Iterable[str | Path]) -> Bm25Corpus:
    """A BM25 corpus of the passages of files, folders and patterns."""
    return Bm25Corpus(list(read_passages(paths)))


def read_passages(
    paths: Iterable[str | Path], words: int = WORDS, known: "Known | None" = None
) -> Iterator[Passage]:
    """All new passages, each once, in the order of the files; `known` has the existing ones."""
    known = Known() if known is None else known
    for record in read_records(paths):
        if record.document:
            yield from (each for each, _ in document_passages(record.document, known, words))
            continue
        title, text, own = _of_record(record)
        pieces = list(by_words(text, words))
        for number, piece in enumerate(pieces, 1):
            suffix = f"#{number}" if len(pieces) > 1 else ""
            name = own and f"{own}{suffix}"
            if passage := known.take(piece, title, name, record.where):
                yield passage


def document_passages(
    document: Document, known: "Known", words: int = WORDS
) -> Iterator[tuple[Passage, int]]:
    """The new passages of a document, each with its first character."""
    heading = _HEADING.search(document.text[:HEAD])
    title = heading[1].strip("# \t") if heading else Path(document.name).stem
    place = 0
    for piece in by_words(document.text, words):
        place = document.text.index(piece, place)
        if passage := known.take(piece, title, "", document.name):
            yield replace(passage, source=_source(document, place, len(piece))), place
        place += len(piece)


def _source(document: Document, start: int, length: int) -> str:
    """The name of a document's file and the pages."""
    pages = document.pages_of(start, start + length)
    if pages is None:
        return document.name
    first, last = pages
    return f"{document.name}, page {first}" + (f"-{last}" if last > first else "")


class Known:
    """Texts and ids of the existing passages."""

    def __init__(self, passages: Iterable[Passage] = ()) -> None:
        self._names: dict[str, bytes] = {}  # id -> digest of title and text
        self._texts: set[bytes] = set()
        for passage in passages:
            self._keep(passage.id, _digest(passage.title, passage.text))

    def take(self, text: str, title: str, own: str, where: str) -> Passage | None:
        """A new passage, with its own id if it has one; None if it exists."""
        digest = _digest(title, text)
        if own and self._names.get(own, digest) != digest:
            raise InputError(f"{where}: another passage has the id {own!r}; ids must differ")
        if digest in self._texts:
            return None
        name = own or _name(digest)
        if self._names.get(name, digest) != digest:  # a collision of shortened hashes
            name = digest.hex()
        self._keep(name, digest)
        return Passage(name, text, title)

    def _keep(self, name: str, digest: bytes) -> None:
        self._names[name] = digest
        self._texts.add(digest)


def _digest(title: str, text: str) -> bytes:
    return hashlib.blake2b(f"{title}\0{text}".encode(errors="replace"), digest_size=16).digest()


def _name(digest: bytes) -> str:
    return base64.b32encode(digest).decode()[:ID_LETTERS].lower()


def _of_record(record: Record) -> tuple[str, str, str]:
    row = record.content
    text = _first(row, TEXT_FIELDS) if isinstance(row, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{record.where} is not a passage: it needs a field text")
    title, own = _first(row, TITLE_FIELDS), _first(row, ID_FIELDS)
    return (
        "" if title is None else " ".join(str(title).split()),
        text,
        "" if own is None else str(own),
    )


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401 (any JSON)
    return next((row[name] for name in names if row.get(name) is not None), None)
