"""The bytes of a file, unpacked and within bounds, and what kind of document they are."""

import gzip
import io
import zlib
from pathlib import Path, PurePath
from typing import BinaryIO

from graft.documents.html import looks_like_html
from graft.documents.pdf import looks_like_pdf
from graft.documents.text import READABLE, UTF16_BOMS
from graft.errors import InputError

MEGABYTE = 1 << 20
MOST_BYTES = 512 * MEGABYTE  # of one document, unpacked
_HEAD = 64 << 10
GZIP = b"\x1f\x8b"
HTML_SUFFIXES = {".html", ".htm", ".xhtml"}
# First bytes of formats that would pass for text or for just any binary file.
FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"{\\rtf": "an RTF file",
    b"%!PS": "a PostScript file",
    b"AT&TFORM": "a DjVu file",
}
FOREIGN_SUFFIXES = {".docx", ".odt", ".epub", ".pptx", ".xlsx", ".ods", ".odp", ".doc", ".ppt"}


def read_content(path: Path) -> bytes:
    """All bytes, of what is inside if the file is gzipped; InputError in one line otherwise."""
    try:
        with path.open("rb") as file:
            if file.peek(len(GZIP)).startswith(GZIP):
                return _unzipped(file, path)
            return _bounded(file, path)
    except FileNotFoundError:
        raise InputError(f"document {path} does not exist") from None
    except IsADirectoryError:
        raise InputError(f"document {path} is a folder, not a file") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"document {path} cannot be read: {reason}") from None
    except ValueError:
        raise InputError(f"document name {str(path)!r} is not a valid path") from None


def kind_of(data: bytes, path: PurePath) -> str:
    """ "pdf", "html" or "text": by the first bytes, then by the name."""
    if looks_like_pdf(data):
        return "pdf"
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    if name.suffix.lower() in HTML_SUFFIXES or looks_like_html(data):
        return "html"
    return "text"


def _bounded(file: BinaryIO, path: Path) -> bytes:
    """The bytes, refused from the head alone where that says they are no document."""
    head = file.read(_HEAD)
    if not looks_like_pdf(head):
        _refuse_foreign(head, path)
    data = head + file.read(MOST_BYTES + 1 - len(head))
    if len(data) > MOST_BYTES:
        raise InputError(
            f"document {path} has more than {MOST_BYTES // MEGABYTE} MB, the most that is read; "
            "split it and name the parts that matter"
        )
    return data


def _unzipped(file: BinaryIO, path: Path) -> bytes:
    try:
        with gzip.open(file) as unpacked:
            return _bounded(io.BufferedReader(unpacked), path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"document {path} is a damaged gzip file: {error}") from None


def _refuse_foreign(head: bytes, path: Path) -> None:
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            suffix = path.suffix.lower()
            what = f"a {suffix} file" if suffix in FOREIGN_SUFFIXES else what
            raise InputError(f"document {path} is {what}; {READABLE}: save it as one of these")
    if b"\0" in head and not head.startswith(UTF16_BOMS):
        raise InputError(f"document {path} is a binary file; {READABLE}")
