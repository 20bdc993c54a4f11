"""Split a text into passages of a maximum number of words, as DPR splits Wikipedia.

A passage ends with a sentence or paragraph if one ends in its last quarter. In scripts without
spaces two characters count as a word. A run of more than 64 characters, such as a base64 block,
counts as several words.
"""

import re
from collections.abc import Iterator
from functools import cache

from graft.retrieval.bm25 import UNSPACED

WORDS = 100
MAX_WORD = 64  # characters of a word
_REST = re.compile(r"\s*\Z")
_END = re.compile(r"\n\s*\n|[.!?…][\"'”’»)\]]*(?=\s)|[。！？]")


def by_words(text: str, max_words: int = WORDS) -> Iterator[str]:
    """Passages of at most `max_words` words, stripped."""
    place, pattern = 0, _pattern(max_words)
    while found := pattern.match(text, place):
        start, end = found.span(1)
        place = end if _REST.match(text, end) else _cut(text, start, end)
        yield text[start:place].rstrip()


@cache
def _pattern(max_words: int) -> re.Pattern[str]:
    word = rf"(?:[{UNSPACED}]{{1,2}}|[^\s{UNSPACED}]{{1,{MAX_WORD}}})"
    return re.compile(rf"\s*({word}(?:\s*{word}){{0,{max_words - 1}}})")


def _cut(text: str, start: int, end: int) -> int:
    """The last end of a sentence or paragraph in the last quarter; else `end`."""
    first = start + 3 * (end - start) // 4
    ends = [found.end() for found in _END.finditer(text, first, min(len(text), end + 1))]
    return next((place for place in reversed(ends) if place <= end), end)
