"""Bytes of text and Markdown to characters: UTF-8 (with or without BOM), UTF-16 with BOM.

Text that is not UTF-8 but looks Western in a one-byte encoding is read as Windows-1252, a superset
of Latin-1, with a warning. Everything else is refused.
"""

import codecs
import logging
import re

from graft.documents.formats import READABLE
from graft.errors import InputError

logger = logging.getLogger(__name__)

UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A larger share of non-ASCII bytes is another alphabet or compressed data.
MAX_NON_ASCII = 0.3
_ASCII = bytes(range(0x80))
_CONTROL = bytes(set(range(0x20)) - set(b"\t\n\r\f"))
# Control characters, soft hyphens, zero-width spaces, icon fonts (private use), noncharacters.
_NOISE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b\u2060\ufeff\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff]"
)
_PLAIN = str.maketrans(
    {
        "\u00a0": " ",
        "\u202f": " ",
        "\uf0b7": "•",  # the bullet of Symbol, as word processors write it
        "\ufb00": "ff",
        "\ufb01": "fi",
        "\ufb02": "fl",
        "\ufb03": "ffi",
        "\ufb04": "ffl",
        "\ufb05": "st",
        "\ufb06": "st",
    }
)


def plain_text(data: bytes, path: str) -> str:
    """The text, with \\n line ends; InputError for a file that is not text."""
    text = decoded(data, path)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decoded(data: bytes, path: str) -> str:
    """The text, with its own line ends; `path` is for messages."""
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


def plain_characters(text: str) -> str:
    """The text of PDF or HTML without ligatures and invisible characters."""
    return _NOISE.sub("", text.translate(_PLAIN))


def _decode_western(data: bytes, path: str, failure: UnicodeDecodeError) -> str:
    non_ascii = len(data.translate(None, _ASCII))
    control = len(data) - len(data.translate(None, _CONTROL))
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        text = ""
    if not text or control or non_ascii > MAX_NON_ASCII * len(data):
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
