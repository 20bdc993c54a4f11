"""Bytes of plain text and Markdown to characters: UTF-8 (with or without BOM), UTF-16 with BOM.

Text that is not UTF-8 but looks Western in a one-byte encoding is read as Windows-1252, the
superset of Latin-1 such files are in practice, and a warning is logged. Everything else is refused
rather than read as noise.
"""

import codecs
import logging

from graft.errors import InputError

logger = logging.getLogger(__name__)

READABLE = "text, Markdown, HTML and PDF can be read"
UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# More non-ASCII than this is another alphabet or compressed data, not accented Western text.
MOST_NON_ASCII = 0.3
_ASCII = bytes(range(0x80))
_CONTROL = bytes(set(range(0x20)) - set(b"\t\n\r\f"))


def plain_text(data: bytes, path: str) -> str:
    """The characters, with \\n line ends; InputError says in one line what they are not."""
    text = decoded(data, path)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decoded(data: bytes, path: str) -> str:
    """The characters as they are; `path` is for messages."""
    if data.startswith(UTF16_BOMS):
        encoding = "utf-16"
    elif b"\0" in data:
        raise InputError(f"document {path} is a binary file; {READABLE}")
    else:
        encoding = "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        return _decode_western(data, path, error)


def _decode_western(data: bytes, path: str, failure: UnicodeDecodeError) -> str:
    non_ascii = len(data.translate(None, _ASCII))
    control = len(data) - len(data.translate(None, _CONTROL))
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
