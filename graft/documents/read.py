"""Read documents of all FORMATS, also gzipped; files, folders and patterns.

The first bytes of a file decide its kind, then its suffix.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from graft.documents.content import kind_of, read_content
from graft.documents.find import Found, find_files
from graft.documents.formats import READABLE
from graft.documents.html import html_text
from graft.documents.mail import mail_text
from graft.documents.office import office_text, slides
from graft.documents.pdf import pdf_pages
from graft.documents.text import plain_text
from graft.errors import InputError, MissingDependencyError

logger = logging.getLogger(__name__)

PAGE_BREAK = "\n\n"
MAX_REASONS = 3  # in a message about unreadable files
# The readers of `kind_of`'s kinds: a text for every page, or one text.
PAGED = {"pdf": pdf_pages, "slides": slides}
WHOLE = {"html": html_text, "mail": mail_text, "office": office_text, "text": plain_text}
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file. `name` is the file's name, or its path in the folder that was named.

    `pages` has the first character of every page; it is empty for documents without pages.
    """

    name: str
    text: str
    pages: tuple[int, ...] = ()

    def pages_of(self, start: int, end: int) -> tuple[int, int] | None:
        """First and last page, counted from 1, of the characters from `start` to before `end`."""
        if not self.pages:
            return None
        first = bisect_right(self.pages, start)
        return first, max(first, bisect_right(self.pages, end - 1))


def read_document(path: str | Path, name: str | None = None) -> Document:
    """Read one file; InputError if it does not exist, is empty or has no readable text."""
    path = Path(path)
    return _document(read_content(path), path, name or path.name)


def parse_document(data: bytes, name: str, max_bytes: int) -> Document:
    """The document in the bytes of a file of this name, which may decompress to `max_bytes`."""
    path = Path(name)
    return _document(read_content(path, data, max_bytes), path, name)


def _document(data: bytes, path: Path, name: str) -> Document:
    kind = kind_of(data, path)
    pages: tuple[int, ...] = ()
    if not data or data.isspace():
        text = ""
    elif kind in PAGED:
        texts = PAGED[kind](data, str(path))
        text = PAGE_BREAK.join(texts)
        pages = tuple(accumulate((len(page) + len(PAGE_BREAK) for page in texts[:-1]), initial=0))
    else:
        text = WHOLE[kind](data, str(path))
    if not text or text.isspace():
        raise InputError(f"document {path} is empty")
    return Document(name, text, pages)


def read_documents(paths: Iterable[str | Path]) -> list[Document]:
    """Read files, folders (recursively) and patterns such as docs/**/*.pdf, each file once.

    Unreadable files of a folder or pattern are skipped with a warning; an unreadable file that is
    named itself is an InputError.
    """
    return list(of_files(paths, lambda file: [read_document(file.path, file.name)]))


def of_files(
    paths: Iterable[str | Path], read: Callable[[Found], Iterable[Content]]
) -> Iterator[Content]:
    """What `read` finds in the files of paths, folders and patterns; see `read_documents`."""
    found, refusals = False, []
    for file in find_files(paths):
        try:
            for content in read(file):
                found = True
                yield content
        except (InputError, MissingDependencyError) as error:
            if file.named:
                raise
            refusals.append(str(error).removesuffix(f"; {READABLE}"))
    if not refusals:
        return
    reasons = "; ".join(refusals[:MAX_REASONS])
    reasons += ", ..." if len(refusals) > MAX_REASONS else ""
    if not found:
        raise InputError(f"none of {len(refusals)} files can be read: {reasons}")
    logger.warning("skipped %d files that cannot be read: %s", len(refusals), reasons)
