"""Cut a text into stretches of so many words, as passages of Wikipedia are cut for DPR.

A stretch ends earlier, by up to a quarter, where a paragraph or a sentence ends there. In scripts
that are written without spaces two characters count as a word; so does every so many of a run that
is no word at all, such as a base64 block.
"""

import re
from collections.abc import Iterator
from functools import cache

from graft.retrieval.bm25 import UNSPACED

WORDS = 100
LONGEST = 64  # characters of a word
_REST = re.compile(r"\s*\Z")
_END = re.compile(r"\n\s*\n|[.!?…][\"'”’»)\]]*(?=\s)|[。！？]")


def by_words(text: str, most: int = WORDS) -> Iterator[str]:
    """Stretches of at most `most` words, without the blanks around them."""
    place, pattern = 0, _stretch(most)
    while found := pattern.match(text, place):
        start, end = found.span(1)
        place = end if _REST.match(text, end) else _cut(text, start, end)
        yield text[start:place].rstrip()


@cache
def _stretch(most: int) -> re.Pattern[str]:
    word = rf"(?:[{UNSPACED}]{{1,2}}|[^\s{UNSPACED}]{{1,{LONGEST}}})"
    return re.compile(rf"\s*({word}(?:\s*{word}){{0,{most - 1}}})")


def _cut(text: str, start: int, end: int) -> int:
    """Where the last sentence or paragraph ends in the last quarter; else `end`."""
    least = start + 3 * (end - start) // 4
    ends = [found.end() for found in _END.finditer(text, least, min(len(text), end + 1))]
    return next((place for place in reversed(ends) if place <= end), end)
