"""Find the files of paths, folders and patterns, each once and with a unique name.

Files of a folder are in natural order (2.html before 10.html). Hidden files, images, fonts
and style sheets are skipped, and scripts beside HTML files.
"""

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from graft.documents.formats import HTML
from graft.errors import InputError

logger = logging.getLogger(__name__)

PAGE_PARTS = {
    *(".css", ".map", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico"),
    *(".woff", ".woff2", ".ttf", ".otf", ".eot"),
}
SCRIPTS = {".js", ".mjs"}
BUILT = {"__pycache__", "node_modules"}  # folders
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Found:
    """`name` is unique; a file that was `named` itself, not found in a folder, must be readable."""

    path: Path
    name: str
    named: bool


def find_files(paths: Iterable[str | Path]) -> list[Found]:
    """Every file, in the order given; InputError for a folder or pattern without files."""
    found: dict[str, Found] = {}
    for path in paths:
        for file in _expand(str(path)):
            real = os.path.realpath(file.path)
            if real not in found or (file.named and not found[real].named):
                found[real] = file
    return _with_unique_names(list(found.values()))


def natural_order(path: Path) -> list[tuple[int, str]]:
    """Sort key that compares numbers in names as numbers."""
    parts = [_NUMBER.split(part.lower()) for part in path.parts]
    return [
        (int(piece), "") if piece.isdecimal() else (-1, piece)
        for pieces in parts
        for piece in [*pieces, ""]
    ]


def _expand(given: str) -> Iterator[Found]:
    path = Path(os.path.expanduser(given))  # keeps ~user if that user does not exist
    if "\0" in given:
        raise InputError(f"document name {given!r} is not a valid path")
    if os.path.isdir(path):
        yield from _in_folder(path)
    elif os.path.lexists(path) or not glob.has_magic(given):
        yield Found(path, path.name, named=True)
    else:
        yield from _matching(given, str(path))


def _in_folder(folder: Path) -> Iterator[Found]:
    files = []
    for place, folders, names in os.walk(folder, onerror=_warn):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in BUILT]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    skipped = PAGE_PARTS
    if any(file.suffix.lower() in HTML for file in files):
        skipped = skipped | SCRIPTS
    files = [file for file in files if file.suffix.lower() not in skipped and file.is_file()]
    if not files:
        raise InputError(f"the folder {folder} has no documents")
    for file in sorted(files, key=natural_order):
        yield Found(file, str(file.relative_to(folder)), named=False)


def _warn(error: OSError) -> None:
    logger.warning("the folder %s cannot be read: %s", error.filename, error.strerror)


def _matching(given: str, pattern: str) -> Iterator[Found]:
    matches = [Path(match) for match in glob.iglob(pattern, recursive=True)]
    files = sorted((match for match in matches if match.is_file()), key=natural_order)
    if not files:
        raise InputError(f"no file matches {given}")
    fixed = os.path.commonpath([file.parent for file in files])
    for file in files:
        yield Found(file, os.path.relpath(file, fixed), named=False)


def _with_unique_names(files: list[Found]) -> list[Found]:
    """Files with equal names get names with more of their folders."""
    names = [file.name for file in files]
    while shared := {name for name, count in Counter(names).items() if count > 1}:
        longer = [
            _longer(file.path, name) if name in shared else name
            for file, name in zip(files, names, strict=True)
        ]
        if longer == names:
            break
        names = longer
    return [Found(file.path, name, file.named) for file, name in zip(files, names, strict=True)]


def _longer(path: Path, name: str) -> str:
    parts = path.absolute().parts
    return str(Path(*parts[-min(len(Path(name).parts) + 1, len(parts)) :]))
