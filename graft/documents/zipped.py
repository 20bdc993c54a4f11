"""EPUB and OpenDocument texts to Markdown: zip files of XML, which kreuzberg reads with losses.

Of an OpenDocument text kreuzberg 4.10 drops links and the marked words of table cells; in EPUB it
shifts marks into the middle of words.
"""

import html
import posixpath
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import PurePath
from urllib.parse import unquote
from xml.etree import ElementTree

from graft.documents.html import html_text
from graft.errors import InputError

MAX_BYTES = 128 << 20  # of one file inside, decompressed
BLOCKS = {"p": "p", "list": "ul", "list-item": "li", "list-header": "li", "table": "table",
          "table-row": "tr", "table-cell": "td", "covered-table-cell": "td"}  # fmt: skip
LEFT_OUT = ("tracked-changes", "annotation", "annotation-end", "sequence-decls", "forms")
WHITE = {"s": " ", "tab": "\t", "line-break": "\n"}
Element = ElementTree.Element


def epub_text(data: bytes, path: str) -> str:
    """The chapters in reading order; InputError for a damaged book."""
    with _opened(data, path) as archive:
        container = ElementTree.fromstring(_read(archive, "META-INF/container.xml"))
        package_path = next(container.iterfind(".//{*}rootfile")).attrib["full-path"]
        package = ElementTree.fromstring(_read(archive, package_path))
        files = {
            each.get("id"): each.attrib["href"] for each in package.iterfind("{*}manifest/{*}item")
        }
        folder = posixpath.dirname(package_path)
        names = [
            unquote(files[each.get("idref")]) for each in package.iterfind("{*}spine/{*}itemref")
        ]
        pages = [_read(archive, posixpath.normpath(posixpath.join(folder, n))) for n in names]
    return "\n\n".join(filter(None, (html_text(page, path).strip() for page in pages)))


def odt_text(data: bytes, path: str) -> str:
    """Headings, paragraphs, lists and tables; InputError for a damaged file."""
    with _opened(data, path) as archive:
        content = ElementTree.fromstring(_read(archive, "content.xml"))
        body = next(content.iterfind("{*}body/{*}text"))
    return html_text(f"<html><body>{_blocks(body)}</body></html>".encode(), path)


@contextmanager
def _opened(data: bytes, path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            yield archive
    except (zipfile.BadZipFile, ElementTree.ParseError, LookupError, StopIteration,
            NotImplementedError, RuntimeError, ValueError) as error:  # fmt: skip
        suffix = PurePath(path.lower().removesuffix(".gz")).suffix
        reason = " ".join(str(error).split()) or "it is not complete"
        raise InputError(f"document {path} cannot be read as {suffix}: {reason}") from None


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MAX_BYTES:
        raise ValueError(f"{name} has more than {MAX_BYTES >> 20} MB")
    return archive.read(name)


def _blocks(element: Element) -> str:
    """The HTML of the blocks inside an element."""
    made = []
    for each in element:
        name = _name(each)
        if name == "h":
            level = min(int(each.get(_with_namespace(each, "outline-level"), "1")), 6)
            made.append(f"<h{level}>{_inline(each)}</h{level}>")
        elif name == "p":
            made.append(f"<p>{_inline(each)}</p>")
        elif name not in LEFT_OUT:
            tag = BLOCKS.get(name)
            inside = _blocks(each)
            made.append(f"<{tag}>{inside}</{tag}>" if tag else inside)
    return "".join(made)


def _inline(element: Element) -> str:
    """The text of a paragraph, of all its marks and links."""
    made = [html.escape(element.text or "")]
    for each in element:
        name = _name(each)
        if name in WHITE:
            made.append(WHITE[name] * int(each.get(_with_namespace(each, "c"), "1")))
        elif name not in LEFT_OUT:
            made.append(f" {_inline(each)} " if name in ("p", "note") else _inline(each))
        made.append(html.escape(each.tail or ""))
    return "".join(made)


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _with_namespace(element: Element, name: str) -> str:
    """The name of an attribute in the element's namespace."""
    return f"{str(element.tag).partition('}')[0]}}}{name}"
