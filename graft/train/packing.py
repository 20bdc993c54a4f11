"""Packs examples into rows of one length, with little padding."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from graft.train.examples import Example

OPEN = 64  # incomplete rows
MIN_TOKENS = 8  # of a piece
PADDING = -1  # as document number


@dataclass(frozen=True, slots=True)
class Rows:
    """`tokens`, `documents` (numbered within a row) and `loss_mask`, [N, L] each."""

    tokens: np.ndarray
    documents: np.ndarray
    loss_mask: np.ndarray

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
    """Put every piece into the fullest open row it fits; longer examples are split."""
    done: list[_Row] = []
    incomplete: list[_Row] = []
    for example in examples:
        for piece in _cut(example, length):
            fits = [row for row in incomplete if row.used + len(piece.tokens) <= length]
            if fits:
                max(fits, key=lambda row: row.used).add(piece)
                continue
            if len(incomplete) == OPEN:
                fullest = max(range(OPEN), key=lambda place: incomplete[place].used)
                done.append(incomplete.pop(fullest))
            incomplete.append(_Row())
            incomplete[-1].add(piece)
    return _stacked(done + incomplete, length)


def _cut(example: Example, length: int) -> Iterable[Example]:
    for first in range(0, len(example.tokens), length):
        piece = slice(first, first + length)
        tokens, loss_mask = example.tokens[piece], example.loss_mask[piece]
        if len(tokens) >= MIN_TOKENS and loss_mask.any():
            yield Example(tokens, loss_mask)


def _stacked(rows: list[_Row], length: int) -> Rows:
    tokens = np.zeros((len(rows), length), np.int32)
    documents = np.full((len(rows), length), PADDING, np.int16)
    loss_mask = np.zeros((len(rows), length), bool)
    for place, row in enumerate(rows):
        first = 0
        for number, piece in enumerate(row.pieces):
            last = first + len(piece.tokens)
            tokens[place, first:last] = piece.tokens
            documents[place, first:last] = number
            loss_mask[place, first:last] = piece.loss_mask
            first = last
    return Rows(tokens, documents, loss_mask)
