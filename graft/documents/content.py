"""The bytes of a file, decompressed and limited in size, and their kind of document."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from graft.documents.html import looks_like_html
from graft.documents.pdf import looks_like_pdf
from graft.documents.text import READABLE, UTF16_BOMS
from graft.errors import InputError

MEGABYTE = 1 << 20
MAX_BYTES = 512 * MEGABYTE  # of one document, decompressed
_HEAD = 64 << 10
GZIP = b"\x1f\x8b"
HTML_SUFFIXES = {".html", ".htm", ".xhtml"}
# First bytes of formats that get a message of their own.
FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"{\\rtf": "an RTF file",
    b"%!PS": "a PostScript file",
    b"AT&TFORM": "a DjVu file",
}
FOREIGN_SUFFIXES = {".docx", ".odt", ".epub", ".pptx", ".xlsx", ".ods", ".odp", ".doc", ".ppt"}


def read_content(path: Path) -> bytes:
    """All bytes, decompressed if the file is gzipped; InputError if it cannot be read."""
    with open_document(path) as file:
        return _bounded(file, path)


@contextmanager
def open_document(path: Path) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, decompressed if it is gzipped; InputError while it cannot be read."""
    try:
        with path.open("rb") as file:
            if not file.peek(len(GZIP)).startswith(GZIP):
                yield file
                return
            with gzip.open(file) as unpacked:
                yield unpacked
    except FileNotFoundError:
        raise InputError(f"document {path} does not exist") from None
    except IsADirectoryError:
        raise InputError(f"document {path} is a folder, not a file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"document {path} is a damaged gzip file: {error}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"document {path} cannot be read: {reason}") from None
    except ValueError:
        raise InputError(f"document name {str(path)!r} is not a valid path") from None


def kind_of(data: bytes, path: PurePath) -> str:
    """The kind of document ("pdf", "html" or "text") by its first bytes, then by its suffix."""
    if looks_like_pdf(data):
        return "pdf"
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    if name.suffix.lower() in HTML_SUFFIXES or looks_like_html(data):
        return "html"
    return "text"


def _bounded(file: io.BufferedIOBase, path: Path) -> bytes:
    """The bytes; InputError if they are too many or not a document."""
    head = file.read(_HEAD)
    if not looks_like_pdf(head):
        _refuse_foreign(head, path)
    data = head + file.read(MAX_BYTES + 1 - len(head))
    if len(data) > MAX_BYTES:
        raise InputError(
            f"document {path} has more than {MAX_BYTES // MEGABYTE} MB, the maximum; "
            "split it and name the parts you need"
        )
    return data


def _refuse_foreign(head: bytes, path: Path) -> None:
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            suffix = path.suffix.lower()
            what = f"a {suffix} file" if suffix in FOREIGN_SUFFIXES else what
            raise InputError(f"document {path} is {what}; {READABLE}: save it as one of these")
    if b"\0" in head and not head.startswith(UTF16_BOMS):
        raise InputError(f"document {path} is a binary file; {READABLE}")
