"""Examples of any length in rows of one length, several to a row, so that little is padding."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from graft.train.examples import Example

OPEN = 64  # rows that wait for something that fits
SHORTEST = 8  # pieces with fewer tokens teach nothing
PADDING = -1  # as a document's number


@dataclass(frozen=True, slots=True)
class Rows:
    """`tokens`, `documents` (numbered within a row) and `learned`, [N, L] each."""

    tokens: np.ndarray
    documents: np.ndarray
    learned: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class _Row:
    pieces: list[Example] = field(default_factory=list)
    used: int = 0

    def add(self, piece: Example) -> None:
        self.pieces.append(piece)
        self.used += len(piece.tokens)


def pack(examples: Iterable[Example], length: int) -> Rows:
    """Every piece in the fullest open row it fits; examples longer than a row are cut."""
    done: list[_Row] = []
    waiting: list[_Row] = []
    for example in examples:
        for piece in _cut(example, length):
            fits = [row for row in waiting if row.used + len(piece.tokens) <= length]
            if fits:
                max(fits, key=lambda row: row.used).add(piece)
                continue
            if len(waiting) == OPEN:
                fullest = max(range(OPEN), key=lambda place: waiting[place].used)
                done.append(waiting.pop(fullest))
            waiting.append(_Row())
            waiting[-1].add(piece)
    return _stacked(done + waiting, length)


def _cut(example: Example, length: int) -> Iterable[Example]:
    for first in range(0, len(example.tokens), length):
        piece = slice(first, first + length)
        tokens, learned = example.tokens[piece], example.learned[piece]
        if len(tokens) >= SHORTEST and learned.any():
            yield Example(tokens, learned)


def _stacked(rows: list[_Row], length: int) -> Rows:
    tokens = np.zeros((len(rows), length), np.int32)
    documents = np.full((len(rows), length), PADDING, np.int16)
    learned = np.zeros((len(rows), length), bool)
    for place, row in enumerate(rows):
        first = 0
        for number, piece in enumerate(row.pieces):
            last = first + len(piece.tokens)
            tokens[place, first:last] = piece.tokens
            documents[place, first:last] = number
            learned[place, first:last] = piece.learned
            first = last
    return Rows(tokens, documents, learned)
