"""HTML to Markdown: headings, lists, tables and code are kept, scripts and links removed.

The converter is html-to-markdown: of the 819,000 words on 261 pages of Debian's documentation it
lost 652 (inscriptis 2,485), and Markdown keeps the headings.
"""

import codecs
import logging
import re

from graft.documents.text import UTF16_BOMS, decoded, plain_characters
from graft.errors import InputError

logger = logging.getLogger(__name__)

# Navigation, as HTML, ARIA, Sphinx and DocBook mark it.
NAVIGATION = (
    "nav",
    "select",
    "[role=navigation]",
    "[role=search]",
    "a.headerlink",
    ".navheader",
    ".navfooter",
)
# Only their text is kept: marks inside a sentence would break quotations.
UNMARKED = ("a", "img", "em", "strong", "b", "i", "u", "mark")
# Encodings that browsers use for these names (the WHATWG encoding standard).
SUPERSETS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_HEAD = 4096
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]+)", re.I
)
_STARTS = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*(?:<!doctype\s+html|<html\b)", re.I | re.S
)
_LINE_END_SPACES = re.compile(r"[ \t]+$", re.M)
_BLANK_LINES = re.compile(r"\n{3,}")
_ESCAPED_NUMBER = re.compile(r"^(\s*\d+)\\([.)])", re.M)


def looks_like_html(data: bytes) -> bool:
    """Whether the bytes begin like an HTML page."""
    head = data[:_HEAD]
    encoding = "utf-16" if head.startswith(UTF16_BOMS) else "utf-8-sig"
    text = head.decode(encoding, errors="replace")
    return _STARTS.match(text) is not None


def html_text(data: bytes, path: str) -> str:
    """The page as Markdown; "" if it has no text."""
    import html_to_markdown

    options = html_to_markdown.ConversionOptions(
        strip_tags=list(UNMARKED),
        exclude_selectors=list(NAVIGATION),
        hidden_content="reachable",
        compact_tables=True,
        skip_images=True,
        autolinks=False,
        expand_abbreviations=False,
        extract_metadata=False,
        preprocessing=html_to_markdown.PreprocessingOptions(enabled=False),
    )
    try:
        result = html_to_markdown.convert(_markup(data, path), options)
    except Exception as error:  # the converter's errors share no base class
        reason = " ".join(str(error).split())
        raise InputError(f"document {path} cannot be read as HTML: {reason}") from error
    if result.warnings:
        logger.warning("%s was not read completely: %s", path, result.warnings[0].message)
    text = plain_characters(result.content or "")
    for pattern, replacement in (
        (_LINE_END_SPACES, ""),
        (_BLANK_LINES, "\n\n"),
        (_ESCAPED_NUMBER, r"\1\2"),
    ):
        text = pattern.sub(replacement, text)
    return text


def _markup(data: bytes, path: str) -> str:
    """The text, decoded by the BOM, else the declared encoding, else as plain text.

    Non-ASCII bytes that are valid UTF-8 are decoded as UTF-8, whatever the page declares.
    """
    declared = _DECLARED.search(data[:_HEAD])
    if declared is None or data.startswith((codecs.BOM_UTF8, *UTF16_BOMS)):
        return decoded(data, path)
    try:
        name = codecs.lookup(declared[1].decode("ascii")).name
        if name.startswith("utf") or (not data.isascii() and _is_utf8(data)):
            return decoded(data, path)
        return data.decode(SUPERSETS.get(name, name), errors="replace")
    except (LookupError, UnicodeDecodeError):  # an unknown encoding
        return decoded(data, path)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
