"""Split a prompt's tokens into chunks at section, paragraph, line, sentence or word borders.

A chunk has between half and all of the maximum number of tokens, and ends at the best border in
that range. Nothing is tokenized again: the chunks joined are the prompt's own ids. (passage.py
splits text that has no tokens yet.)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graft.retrieval.token_text import TokenText

MAX_TOKENS = 512
_CLOSED = r"[\"'”’»)\]」』）】]*"  # what may follow the end of a sentence
# Borders, best first.
SECTION = re.compile(r"\n+(?=#{1,6}\s)|\f")
PARAGRAPH = re.compile(r"\n(?:[^\S\n]*\n)+")
SENTENCE_LINE = re.compile(rf"(?<=[.!?:;…。！？：；]){_CLOSED}\n")
LINE = re.compile(r"\n")
SENTENCE = re.compile(rf"(?<=[.!?…]){_CLOSED}\s|(?<=[。！？]){_CLOSED}")
CLAUSE = re.compile(r"(?<=[,;:–—])\s|(?<=[，；：、])")
SPACE = re.compile(r"\s+")
LEVELS = (SECTION, PARAGRAPH, SENTENCE_LINE, LINE, SENTENCE, CLAUSE, SPACE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens from `start` to before `end`, and their text."""

    start: int
    end: int
    text: str

    def __len__(self) -> int:
        return self.end - self.start


def chunks(content: TokenText, start: int, end: int, max_tokens: int = MAX_TOKENS) -> list[Chunk]:
    """The tokens from `start` to before `end` in chunks of at most `max_tokens`."""
    cuts = [start, *_cuts(content, start, end, max_tokens)]
    return [
        Chunk(first, last, content.of(first, last))
        for first, last in zip(cuts, cuts[1:], strict=False)
    ]


def _cuts(content: TokenText, start: int, end: int, max_tokens: int) -> Iterator[int]:
    """The ends of the chunks."""
    while end - start > max_tokens:
        start = cut(content, start + max(1, max_tokens // 2), start + max_tokens)
        yield start
    if start < end:
        yield end


def cut(content: TokenText, low: int, high: int) -> int:
    """The best border in [low, high]; `high` if one character spans all of them."""
    first, last = np.searchsorted(content.borders, (low, high + 1))
    if first == last:
        return high
    places = content.places[first:last]
    for level in LEVELS:
        found = _last_in(level, content.text, places)
        if found is not None:
            return int(content.borders[first + found])
    return int(content.borders[last - 1])


def _last_in(level: re.Pattern[str], text: str, places: np.ndarray) -> int | None:
    """Index of the last place that is inside a match or at its edge."""
    window = level.finditer(text, max(0, int(places[0]) - 1), int(places[-1]) + 1)
    for match in reversed(list(window)):
        number = int(np.searchsorted(places, match.end(), side="right")) - 1
        if number >= 0 and places[number] >= match.start():
            return number
    return None
