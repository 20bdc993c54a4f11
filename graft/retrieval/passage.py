"""Cut a document into passages: stretches of text short enough to choose among.

A cut is made at the end of the last section, else paragraph, else line that ends a sentence, else
line, else sentence, else word that lets the passage have between half and all of the characters
allowed. Lines of tables and code so stay whole. Nothing is lost or repeated: joined again, the
passages are the document.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_CHARACTERS = 1200
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


def split(document: str, text: str, most: int = MOST_CHARACTERS) -> list[Passage]:
    """The document in passages of at most `most` characters."""
    cuts = list(_cuts(text, most))
    return [
        Passage(document, start, end, text[start:end])
        for start, end in zip([0, *cuts], cuts, strict=False)
    ]


def _cuts(text: str, most: int) -> Iterator[int]:
    """Where passages end."""
    place = 0
    while len(text) - place > most:
        place = _cut(text, place + max(1, most // 2), place + most)
        yield place
    if place < len(text):
        yield len(text)


def _cut(text: str, least: int, most: int) -> int:
    """The best place to cut in [least, most]."""
    for mark, kept in (("\n#", 1), ("\n\n", 2)):
        found = text.rfind(mark, least - kept, most)
        if found >= 0:
            return found + kept
    return (
        _last_end(_SENTENCE_LINE, text, least, most)
        or text.rfind("\n", least - 1, most) + 1
        or _last_end(_SENTENCE, text, least, most)
        or _last_end(_SPACE, text, least, most)
        or most
    )


def _last_end(pattern: re.Pattern[str], text: str, least: int, most: int) -> int:
    """Where the last match ends in [least, most]; 0 if none does."""
    ends = [match.end() for match in pattern.finditer(text, max(0, least - 8), most)]
    return ends[-1] if ends and ends[-1] >= least else 0
