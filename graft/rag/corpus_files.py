"""A corpus out of files: records that are passages, or documents that are cut into passages.

A record of JSON lines, a JSON array or parquet has a `text`, perhaps a `title` and an `id` (the
names that published corpora use are known too); without one its id is its number. Every other file
is a document, cut into pieces of about a hundred words with the file's name as title.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graft.documents.records import Record, read_records
from graft.errors import InputError
from graft.rag.corpus import Bm25Corpus, Passage
from graft.retrieval.passage import split

TEXT_FIELDS = ("text", "contents", "content", "passage", "paragraph_text", "paragraph")
TITLE_FIELDS = ("title", "name")
ID_FIELDS = ("id", "_id", "docid", "doc_id", "pid")
MOST_CHARACTERS = 700  # of a passage cut from a document: about a hundred words


def read_corpus(paths: Iterable[str | Path]) -> Bm25Corpus:
    """The passages of files, folders and patterns, searched by BM25."""
    passages = list(read_passages(paths))
    if not passages:
        raise InputError("the corpus has no passages; name files that hold some")
    return Bm25Corpus(passages)


def read_passages(paths: Iterable[str | Path]) -> Iterator[Passage]:
    """All passages, in the order of the files."""
    names: Counter[str] = Counter()
    for number, record in enumerate(read_records(paths), 1):
        if record.document:
            name = Path(record.where).name
            names[name] += 1
            again = f"-{names[name]}" if names[name] > 1 else ""  # of another folder
            yield from _of_document(f"{name}{again}", record.content)
        else:
            yield _of_record(record, number)


def _of_document(name: str, text: str) -> Iterator[Passage]:
    for number, piece in enumerate(split(name, text, MOST_CHARACTERS), 1):
        if piece.text.strip():
            yield Passage(f"{name}#{number}", piece.text.strip(), name)


def _of_record(record: Record, number: int) -> Passage:
    row = record.content
    text = _first(row, TEXT_FIELDS) if isinstance(row, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{record.where} is no passage: it needs a field text")
    title, own = _first(row, TITLE_FIELDS), _first(row, ID_FIELDS)
    return Passage(
        str(number if own is None else own),
        text.strip(),
        "" if title is None else str(title).strip(),
    )


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401 (any JSON)
    return next((row[name] for name in names if row.get(name) is not None), None)
