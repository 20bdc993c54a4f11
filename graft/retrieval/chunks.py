"""Cut a prompt's tokens into chunks: as many tokens as allowed, ending where the text allows it.

A cut is made before a section, else after the last paragraph, line that ends a sentence, line,
sentence, clause or word that lets the chunk have between half and all of the tokens. Tokens are
never made anew: joined again, the chunks are the prompt's own ids. (passage.py cuts text of which
there are no tokens yet.)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graft.retrieval.token_text import TokenText

MOST_TOKENS = 512
_CLOSED = r"[\"'”’»)\]」』）】]*"  # what may follow the end of a sentence
# A match is where a cut may be made; best first.
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


def chunks(content: TokenText, start: int, end: int, most: int = MOST_TOKENS) -> list[Chunk]:
    """The tokens from `start` to before `end` in chunks of at most `most`."""
    cuts = [start, *_cuts(content, start, end, most)]
    return [
        Chunk(first, last, content.of(first, last))
        for first, last in zip(cuts, cuts[1:], strict=False)
    ]


def _cuts(content: TokenText, start: int, end: int, most: int) -> Iterator[int]:
    """Where chunks end."""
    while end - start > most:
        start = cut(content, start + max(1, most // 2), start + most)
        yield start
    if start < end:
        yield end


def cut(content: TokenText, least: int, most: int) -> int:
    """The best border in [least, most]; `most` if a character goes on over all of them."""
    first, last = np.searchsorted(content.borders, (least, most + 1))
    if first == last:
        return most
    places = content.places[first:last]
    for level in LEVELS:
        found = _last_in(level, content.text, places)
        if found is not None:
            return int(content.borders[first + found])
    return int(content.borders[last - 1])


def _last_in(level: re.Pattern[str], text: str, places: np.ndarray) -> int | None:
    """Number of the last place that a match begins, ends or holds."""
    window = level.finditer(text, max(0, int(places[0]) - 1), int(places[-1]) + 1)
    for match in reversed(list(window)):
        number = int(np.searchsorted(places, match.end(), side="right")) - 1
        if number >= 0 and places[number] >= match.start():
            return number
    return None
