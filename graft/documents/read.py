"""Read a document: plain text and Markdown, in UTF-8 (with or without BOM) or UTF-16 with BOM.

A file that is not UTF-8 but looks like Western text in a one-byte encoding is read as Windows-1252,
the superset of Latin-1 such files are in practice, and a warning is logged. Everything else is
refused rather than read as noise.
"""

import codecs
import logging
from dataclasses import dataclass
from pathlib import Path

from graft.errors import InputError

logger = logging.getLogger(__name__)

LATER_FORMATS = {".pdf", ".html", ".htm", ".xhtml", ".docx", ".doc", ".odt", ".rtf", ".epub"}
# More non-ASCII than this is another alphabet or compressed data, not accented Western text.
MOST_NON_ASCII = 0.3


@dataclass(frozen=True, slots=True)
class Document:
    """`name` is the file's name without its folder."""

    name: str
    text: str


def read_document(path: str | Path) -> Document:
    """The text of a file, with \\n line ends; InputError says in one line why it cannot be used."""
    path = Path(path)
    if path.suffix.lower() in LATER_FORMATS:
        raise InputError(
            f"{path} is a {path.suffix.lower()} file; this version reads text and Markdown: "
            "save it as .txt or .md first"
        )
    text = _decode(_read_bytes(path), path).replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise InputError(f"document {path} is empty")
    return Document(name=path.name, text=text)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"document {path} does not exist") from None
    except IsADirectoryError:
        raise InputError(f"document {path} is a folder; name its files one by one") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"document {path} cannot be read: {reason}") from None
    except ValueError:
        raise InputError(f"document name {str(path)!r} is not a valid path") from None


def _decode(data: bytes, path: Path) -> str:
    if data.startswith(b"%PDF-"):
        raise InputError(f"{path} is a PDF; this version reads text and Markdown")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in data:
        raise InputError(f"document {path} is a binary file; this version reads text and Markdown")
    else:
        encoding = "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        return _decode_western(data, path, error)


def _decode_western(data: bytes, path: Path, failure: UnicodeDecodeError) -> str:
    non_ascii = sum(byte >= 0x80 for byte in data)
    control = sum(byte < 0x20 and byte not in b"\t\n\r\f" for byte in data)
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        text = ""
    if not text or control or non_ascii > MOST_NON_ASCII * len(data):
        raise InputError(
            f"document {path} is not UTF-8 text (byte {failure.start}); convert it to UTF-8 first, "
            "for example with iconv"
        )
    logger.warning(
        "%s is not UTF-8 (byte %d); read as Windows-1252, so check its accented letters",
        path,
        failure.start,
    )
    return text
