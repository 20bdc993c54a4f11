"""PDF to text, page by page, with pdfium.

pdfium spells ligatures out and follows columns; where it joined a word that was broken at a line's
end it leaves a mark (U+FFFE). Whether the word keeps a hyphen there is not in the file, so the
document's own spelling decides: "web-based" elsewhere on its pages keeps it, otherwise it goes.
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING

from graft.documents.characters import plain_characters
from graft.errors import InputError

if TYPE_CHECKING:
    from pypdfium2 import PdfiumError

logger = logging.getLogger(__name__)

_PDFIUM = threading.Lock()  # pdfium keeps global state: one thread at a time
_BROKEN_WORD = re.compile("(\\w+)\ufffe(\\w+)")
_HYPHENATED_WORD = re.compile(r"\w+-\w+")
_LINE_ENDS = re.compile(r"[ \t]*\r\n?|[ \t]+\n")


def looks_like_pdf(data: bytes) -> bool:
    """Readers accept some bytes before the header, and so do we."""
    return b"%PDF-" in data[:1024]


def pdf_pages(data: bytes, path: str) -> list[str]:
    """The text of every page; InputError in one line for a PDF that has none to give."""
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
    """What pdfium reads, None for a page it cannot."""
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

    # pdfium keeps its last error: of a PDF without pages it gives the reason of the one before.
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
            f"document {path} has no text layer ({count} without a letter, as a scanner makes "
            "them): add one with OCR first, for example: ocrmypdf in.pdf out.pdf"
        )
    if empty > len(pages) / 2:
        logger.warning(
            "%s: %d of %s have no text layer (scanned?) and are left out", path, empty, count
        )
