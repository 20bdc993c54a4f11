"""The bytes of a file, decompressed and limited in size, and their kind of document."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from graft.documents.formats import HTML, MAIL, OFFICE, READABLE, SLIDES
from graft.documents.html import looks_like_html
from graft.documents.pdf import looks_like_pdf
from graft.documents.text import UTF16_BOMS
from graft.errors import InputError

MEGABYTE = 1 << 20
MAX_BYTES = 512 * MEGABYTE  # of one document, decompressed
_HEAD = 64 << 10
GZIP = b"\x1f\x8b"
# First bytes of formats that get a message of their own.
FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xd0\xcf\x11\xe0": "an old or encrypted Office file",
    b"%!PS": "a PostScript file",
    b"AT&TFORM": "a DjVu file",
}
ZIP, RTF = b"PK\x03\x04", b"{\\rtf"


def read_content(path: Path, data: bytes | None = None, max_bytes: int | None = None) -> bytes:
    """All bytes of a file, or `data` of one, decompressed; InputError if it cannot be read."""
    with open_document(path, data) as file:
        return _bounded(file, path, max_bytes or MAX_BYTES)


@contextmanager
def open_document(path: Path, data: bytes | None = None) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, decompressed if it is gzipped; InputError while it cannot be read."""
    try:
        with path.open("rb") if data is None else io.BufferedReader(io.BytesIO(data)) as file:
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
    """The kind of document (see `read.py`) by its first bytes, then by its suffix."""
    if looks_like_pdf(data):
        return "pdf"
    suffix = _suffix(path)
    if suffix in OFFICE and data.startswith((ZIP, RTF)):
        return "slides" if suffix == SLIDES else "office"
    if suffix in HTML or looks_like_html(data):
        return "html"
    return "mail" if suffix in MAIL else "text"


def _suffix(path: PurePath) -> str:
    """In lower case, without that of gzip."""
    return PurePath(path.name.lower().removesuffix(".gz")).suffix


def _bounded(file: io.BufferedIOBase, path: Path, max_bytes: int) -> bytes:
    """The bytes; InputError if they are too many or not a document."""
    head = file.read(_HEAD)
    if not looks_like_pdf(head):
        _refuse_foreign(head, path)
    data = head + file.read(max(0, max_bytes + 1 - len(head)))
    if len(data) > max_bytes:
        raise InputError(
            f"document {path} has more than {max_bytes // MEGABYTE} MB, the maximum; "
            "split it and name the parts you need"
        )
    return data


def _refuse_foreign(head: bytes, path: Path) -> None:
    if head.startswith((ZIP, RTF)) and _suffix(path) in OFFICE:
        return
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"document {path} is {what}; {READABLE}")
    if b"\0" in head and not head.startswith(UTF16_BOMS):
        raise InputError(f"document {path} is a binary file; {READABLE}")
