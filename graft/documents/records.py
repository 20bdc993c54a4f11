"""Texts of files: whole documents, and the records of JSON, parquet and TSV.

Records of JSON lines, parquet and TSV (with a column `text`, like DPR's Wikipedia) are streamed, so
a file may be larger than memory; a JSON array is read whole. A field holds a text, a list of texts,
or a list of conversation turns with `content` or `value`. Empty texts are skipped.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.documents.content import open_document, read_content
from graft.documents.read import Document, of_files, read_document
from graft.errors import InputError

FIELD = "text"
LINES = (".jsonl", ".ndjson")
JSON = ".json"
PARQUET = ".parquet"
TSV = ".tsv"
BOM_AND_BLANKS = b"\xef\xbb\xbf \t\r\n"
TURN_FIELDS = ("content", "value")


@dataclass(frozen=True, slots=True)
class Record:
    """`content` is a JSON or parquet record, or the text of a whole `document`."""

    content: Any
    where: str  # for messages
    document: Document | None = None


def read_texts(paths: Iterable[str | Path], field: str = FIELD) -> Iterator[str]:
    """All texts of files, folders and patterns; `field` (a.b for nested ones) is that of records.

    Unreadable files of a folder or pattern are skipped with a warning.
    """
    return of_files(paths, lambda file: _texts_of(file.path, field))


def read_records(paths: Iterable[str | Path]) -> Iterator[Record]:
    """All records of files, folders and patterns; see `read_texts`."""
    return of_files(paths, lambda file: _records_of(file.path))


def field_of(record: Record, field: str) -> Any:  # noqa: ANN401 (any JSON)
    """The value of a record's field; InputError if it does not exist."""
    value = record.content
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            names = list(value) if isinstance(value, dict) else []
            raise _missing(field, names, record.where)
        value = value[name]
    return value


def _texts_of(path: Path, field: str) -> Iterator[str]:
    for record in _records_of(path, field.partition(".")[0]):
        if record.document:
            yield record.content
        else:
            yield from _texts_in(record, field)


def _records_of(path: Path, column: str | None = None) -> Iterator[Record]:
    """The records of a file; `column` limits the columns of parquet."""
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = name.suffix.lower()
    if kind in LINES:
        yield from _of_lines(path)
    elif kind == PARQUET:
        yield from _of_parquet(path, column)
    elif kind == TSV and FIELD in (columns := _columns_of(path)):
        yield from _of_table(path, columns)
    elif kind == JSON and (records := _array_of_records(path)):
        for number, record in enumerate(records, 1):
            yield Record(record, f"{path}, record {number}")
    else:
        document = read_document(path)
        yield Record(document.text, str(path), document)


def _array_of_records(path: Path) -> list[Any]:
    """The array of a JSON file if its first element is an object, else []."""
    content = read_content(path)
    if not content.lstrip(BOM_AND_BLANKS).startswith(b"["):
        return []
    try:
        array = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"document {path} is not JSON: {error}") from None
    return array if array and isinstance(array[0], dict) else []


def _of_lines(path: Path) -> Iterator[Record]:
    with open_document(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parsed(line, f"{path}, line {number}")


def _columns_of(path: Path) -> list[str]:
    """The column names in the first line of a table."""
    with open_document(path) as lines:
        first = lines.readline().decode("utf-8-sig", errors="replace")
    return next(csv.reader([first], delimiter="\t"), [])


def _of_table(path: Path, columns: list[str]) -> Iterator[Record]:
    """Rows with CSV quoting; InputError for a row of another length."""
    csv.field_size_limit(sys.maxsize)
    with open_document(path) as lines:
        rows = csv.reader((line.decode("utf-8") for line in lines), delimiter="\t")
        try:
            next(rows)
            for row in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(row) != len(columns):
                    raise InputError(f"{where}, has {len(row)} columns instead of {len(columns)}")
                yield Record(dict(zip(columns, row, strict=True)), where)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}, line {rows.line_num + 1}, is not a row: {error}") from error


def _parsed(line: bytes, where: str) -> Record:
    try:
        return Record(json.loads(line), where)
    except ValueError as error:  # of JSON or of its encoding
        raise InputError(f"{where}, is not JSON: {error}") from error


def _of_parquet(path: Path, column: str | None) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow; type: pip install pyarrow") from None
    columns = [column] if column else None
    try:
        with ParquetFile(path) as file:
            if column and column not in (names := file.schema_arrow.names):
                raise _missing(column, names, str(path))
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for record in batch.to_pylist():
                    yield Record(record, str(path))
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"document {path} cannot be read as parquet: {reason}") from error


def _texts_in(record: Record, field: str) -> Iterator[str]:
    value = field_of(record, field)
    for each in value if isinstance(value, list) else [value]:
        text = _turn(each) if isinstance(each, dict) else each
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"{record.where}: the field {field!r} is not text; name another with --field"
            )
        if text and not text.isspace():
            yield text


def _turn(turn: dict[str, Any]) -> Any:  # noqa: ANN401 (normally a text)
    return next((turn[name] for name in TURN_FIELDS if name in turn), turn)


def _missing(field: str, names: list[str], where: str) -> InputError:
    there = f"there are {', '.join(map(str, names[:8]))}" if names else "it is not an object"
    return InputError(f"{where} has no field {field!r}: {there}; name one with --field")
