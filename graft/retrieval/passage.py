"""Split a document into passages at section, paragraph, line, sentence or word borders.

A passage has between half and all of the maximum number of characters and ends at the best border
in that range, so lines of tables and code stay whole. The passages joined are the document.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 1200
_SENTENCE_LINE = re.compile(r"[.!?:;。！？…][\"'”’»)\]]*\n")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*\s|[。！？]")
_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Passage:
    """`text` is the document's characters from `start` to before `end`."""

    document: str
    start: int
    end: int
    text: str


def split(document: str, text: str, max_characters: int = MAX_CHARACTERS) -> list[Passage]:
    """The document in passages of at most `max_characters`."""
    cuts = list(_cuts(text, max_characters))
    return [
        Passage(document, start, end, text[start:end])
        for start, end in zip([0, *cuts], cuts, strict=False)
    ]


def _cuts(text: str, max_characters: int) -> Iterator[int]:
    """The ends of the passages."""
    place = 0
    while len(text) - place > max_characters:
        place = _cut(text, place + max(1, max_characters // 2), place + max_characters)
        yield place
    if place < len(text):
        yield len(text)


def _cut(text: str, low: int, high: int) -> int:
    """The best border in [low, high]."""
    for mark, kept in (("\n#", 1), ("\n\n", 2)):
        found = text.rfind(mark, low - kept, high)
        if found >= 0:
            return found + kept
    return (
        _last_end(_SENTENCE_LINE, text, low, high)
        or text.rfind("\n", low - 1, high) + 1
        or _last_end(_SENTENCE, text, low, high)
        or _last_end(_SPACE, text, low, high)
        or high
    )


def _last_end(pattern: re.Pattern[str], text: str, low: int, high: int) -> int:
    """The last end of a match in [low, high]; 0 if there is none."""
    ends = [match.end() for match in pattern.finditer(text, max(0, low - 8), high)]
    return ends[-1] if ends and ends[-1] >= low else 0
