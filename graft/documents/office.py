"""Word, PowerPoint, Excel and RTF to Markdown, by kreuzberg.

Tables stay tables. The slides of a presentation are its pages. Speaker notes, headers, footers and
pictures are left out.
"""

import re
from pathlib import PurePath
from typing import Any

from graft.documents.formats import OFFICE, SLIDES
from graft.documents.html import html_text
from graft.documents.zipped import epub_text, odt_text
from graft.errors import InputError, missing_dependency

ZIPPED = {".epub": epub_text, ".odt": odt_text}


def office_text(data: bytes, path: str) -> str:
    """The document as Markdown; InputError for a damaged one."""
    if reader := ZIPPED.get(_suffix(path)):
        return reader(data, path)
    return html_text(_html(data, path).encode(), path)


def slides(data: bytes, path: str) -> list[str]:
    """The text of every slide."""
    import secrets

    mark = f"slide {secrets.token_hex(16)}"
    parts = re.split(rf"<p>{mark} \d+</p>", _html(data, path, mark))
    return [html_text(part.encode(), path).strip() for part in parts[1:]]


def _html(data: bytes, path: str, mark: str = "") -> str:
    """The document as HTML, with a paragraph `mark` and its number before every slide."""
    try:
        import kreuzberg
    except ModuleNotFoundError as error:
        raise missing_dependency(error) from None
    suffix = _suffix(path)
    pages = kreuzberg.PageConfig(
        insert_page_markers=suffix == SLIDES, marker_format=f"\n\n{mark} {{page_num}}\n\n"
    )
    options: dict[str, Any] = {"use_cache": False, "disable_ocr": True}
    config = kreuzberg.ExtractionConfig(output_format="html", pages=pages, **options)
    try:
        return kreuzberg.extract_bytes_sync(data, OFFICE[suffix], config).content
    except kreuzberg.KreuzbergError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"document {path} cannot be read as {suffix}: {reason}") from None


def _suffix(path: str) -> str:
    return PurePath(path.lower().removesuffix(".gz")).suffix
