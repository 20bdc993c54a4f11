"""Find the sources of an answer: its spans that repeat a text word by word.

Only the texts decide, so an answer has the same citations with every drafter and with none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from graft.retrieval.bm25 import UNSPACED

MIN_WORDS = 4  # of a citation; shorter spans are often common phrases
MAX_PLACES = 64  # of the same words that are compared
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Citation:
    """Characters `start` to `end` of the answer repeat those from `first` to `last` of a text."""

    start: int
    end: int
    text: int
    first: int
    last: int


def cite(answer: str, texts: Sequence[str]) -> list[Citation]:
    """The longest spans in order, without overlap; case and punctuation may differ."""
    said, spans = _words(answer)
    wanted = {tuple(said[at : at + MIN_WORDS]) for at in range(len(said) - MIN_WORDS + 1)}
    if not wanted:
        return []
    sources = [_words(text) for text in texts]
    places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for number, (words, _) in enumerate(sources):
        for at in range(len(words) - MIN_WORDS + 1):
            if (key := tuple(words[at : at + MIN_WORDS])) in wanted:
                places.setdefault(key, []).append((number, at))
    found, at = [], 0
    while at <= len(said) - MIN_WORDS:
        known = places.get(tuple(said[at : at + MIN_WORDS]), [])[:MAX_PLACES]
        lengths = [_common(said, at, sources[number][0], first) for number, first in known]
        if not lengths:
            at += 1
            continue
        length = max(lengths)
        number, first = known[lengths.index(length)]
        there = sources[number][1]
        start, end = spans[at][0], spans[at + length - 1][1]
        found.append(Citation(start, end, number, there[first][0], there[first + length - 1][1]))
        at += length
    return found


def _words(text: str) -> tuple[list[str], list[Span]]:
    """Words in lower case, and their characters."""
    matches = list(_WORD.finditer(text))
    return [match[0].lower() for match in matches], [match.span() for match in matches]


def _common(one: list[str], at: int, other: list[str], first: int) -> int:
    """The number of equal words from these places on."""
    length = 0
    for left, right in zip(one[at:], other[first:], strict=False):
        if left != right:
            break
        length += 1
    return length
