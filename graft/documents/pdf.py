"""PDF to text, page by page, with pdfium.

pdfium expands ligatures and follows columns. Where it joins a word that is broken at the end of a
line, it leaves a mark (U+FFFE). The word keeps a hyphen there if the document has it with a hyphen
elsewhere ("web-based").
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING

from graft.documents.text import plain_characters
from graft.errors import InputError

if TYPE_CHECKING:
    from pypdfium2 import PdfiumError

logger = logging.getLogger(__name__)

OBJECT_WITHIN = 16 << 10  # bytes
_PDFIUM = threading.Lock()  # pdfium keeps global state: one thread at a time
_BROKEN_WORD = re.compile("(\\w+)\ufffe(\\w+)")
_HYPHENATED_WORD = re.compile(r"\w+-\w+")
_LINE_ENDS = re.compile(r"[ \t]*\r\n?|[ \t]+\n")


def looks_like_pdf(data: bytes) -> bool:
    """Whether the header is in the first 1,024 bytes and, if not at byte 0, an object follows."""
    header = data.find(b"%PDF-", 0, 1024)
    return header == 0 or (header > 0 and b" 0 obj" in data[:OBJECT_WITHIN])


def pdf_pages(data: bytes, path: str) -> list[str]:
    """The text of every page; InputError for a PDF without text."""
    with _PDFIUM:
        raw = list(_raw_pages(data, path))
    failed = sum(page is None for page in raw)
    if failed == len(raw):
        raise InputError(f"document {path} is a damaged PDF: none of its pages can be read")
    if failed:
        logger.warning("%s is damaged: %d of %d pages left out", path, failed, len(raw))
    pages = [page or "" for page in raw]
    hyphenated = set(chain.from_iterable(map(_HYPHENATED_WORD.findall, pages)))
    pages = [_clean(page, hyphenated) for page in pages]
    _check_text_layer(pages, path)
    return pages


def _raw_pages(data: bytes, path: str) -> Iterator[str | None]:
    """The text of every page, None for a page that pdfium cannot read."""
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise InputError(_refusal(error, data, path)) from error
    with pdf:
        for number in range(len(pdf)):
            try:
                with closing(pdf[number]) as page, closing(page.get_textpage()) as text:
                    yield text.get_text_range()
            except pypdfium2.PdfiumError:
                yield None


def _refusal(error: "PdfiumError", data: bytes, path: str) -> str:
    import pypdfium2.raw

    # For a PDF without pages, pdfium reports the error of the PDF before.
    if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD and b"/Encrypt" in data:
        return (
            f"document {path} is encrypted; save it without the password first, for example: "
            "qpdf --password=PASSWORD --decrypt in.pdf out.pdf"
        )
    return (
        f"document {path} is not a complete PDF (no pages, cut off or damaged); "
        "fetch or export it again"
    )


def _clean(page: str, hyphenated: set[str]) -> str:
    def joined(word: re.Match[str]) -> str:
        with_hyphen = f"{word[1]}-{word[2]}"
        return with_hyphen if with_hyphen in hyphenated else word[1] + word[2]

    return plain_characters(_BROKEN_WORD.sub(joined, _LINE_ENDS.sub("\n", page))).strip()


def _check_text_layer(pages: list[str], path: str) -> None:
    empty = sum(not page for page in pages)
    count = f"{len(pages)} pages" if len(pages) > 1 else "its page"
    if empty == len(pages):
        raise InputError(
            f"document {path} has no text layer ({count} scanned?): add one with OCR first, for "
            "example: ocrmypdf in.pdf out.pdf"
        )
    if empty > len(pages) / 2:
        logger.warning(
            "%s: %d of %s have no text layer (scanned?) and are left out", path, empty, count
        )
