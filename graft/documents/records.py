"""Many texts out of files: whole documents, and the records of JSON and parquet.

Records of JSON lines and parquet are read one by one, so a file may be larger than memory; a JSON
array of records is read whole. A field holds a text, a list of texts, or a list of turns of a
conversation, whose `content` or `value` is taken. Empty ones are left out.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from graft.documents.content import read_content
from graft.documents.find import find_files
from graft.documents.read import read_document, warn_of_skipped
from graft.errors import InputError

FIELD = "text"
LINES = (".jsonl", ".ndjson")
JSON = ".json"
PARQUET = ".parquet"
BOM_AND_BLANKS = b"\xef\xbb\xbf \t\r\n"
TURN_FIELDS = ("content", "value")


def read_texts(paths: Iterable[str | Path], field: str = FIELD) -> Iterator[str]:
    """All texts of files, folders and patterns; `field` (a.b for b in a) is that of records.

    A file named itself must be readable; others in a folder or pattern are skipped with a warning.
    """
    refusals: list[str] = []
    for file in find_files(paths):
        try:
            yield from _texts_of(file.path, field)
        except InputError as error:
            if file.named:
                raise
            refusals.append(str(error))
    warn_of_skipped(refusals)


def _texts_of(path: Path, field: str) -> Iterator[str]:
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = name.suffix.lower()
    if kind in LINES:
        yield from _of_lines(path, field)
    elif kind == PARQUET:
        yield from _of_parquet(path, field)
    elif kind == JSON and (records := _array_of_records(path)):
        for number, record in enumerate(records, 1):
            yield from _texts_in(record, field, f"{path}, record {number}")
    else:
        yield read_document(path).text


def _array_of_records(path: Path) -> list[Any]:
    """What a JSON file holds, if that is an array that begins with an object; else nothing."""
    content = read_content(path)
    if not content.lstrip(BOM_AND_BLANKS).startswith(b"["):
        return []
    try:
        array = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"document {path} is not JSON: {error}") from None
    return array if array and isinstance(array[0], dict) else []


def _of_lines(path: Path, field: str) -> Iterator[str]:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    number = 0
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from _texts_in(json.loads(line), field, f"{path}, line {number}")
    except FileNotFoundError:
        raise InputError(f"document {path} does not exist") from None
    except ValueError as error:  # of JSON or of its encoding
        raise InputError(f"{path}, line {number}, is not JSON: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"document {path} is a damaged gzip file: {error}") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"document {path} cannot be read: {reason}") from error


def _of_parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow; type: pip install pyarrow") from None
    column = field.partition(".")[0]
    try:
        with ParquetFile(path) as file:
            if column not in (names := file.schema_arrow.names):
                raise _missing(column, names, str(path))
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                for record in batch.to_pylist():
                    yield from _texts_in(record, field, str(path))
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"document {path} cannot be read as parquet: {reason}") from error


def _texts_in(record: Any, field: str, where: str) -> Iterator[str]:  # noqa: ANN401 (any JSON)
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise _missing(field, list(value) if isinstance(value, dict) else [], where)
        value = value[name]
    for each in value if isinstance(value, list) else [value]:
        text = _turn(each) if isinstance(each, dict) else each
        if text is not None and not isinstance(text, str):
            raise InputError(f"{where}: the field {field!r} holds no text; --field names another")
        if text and not text.isspace():
            yield text


def _turn(turn: dict[str, Any]) -> Any:  # noqa: ANN401 (a text, if all is well)
    return next((turn[name] for name in TURN_FIELDS if name in turn), turn)


def _missing(field: str, names: list[str], where: str) -> InputError:
    there = f"there are {', '.join(map(str, names[:8]))}" if names else "it is no object"
    return InputError(f"{where} has no field {field!r}: {there}; --field names one")
