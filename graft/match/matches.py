"""Indexes of growing texts, and the result of a lookup: a trie of continuations with counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.match.hash_table import Text


@dataclass(frozen=True, slots=True)
class Matches:
    """Continuations of the text as parallel rows, parents before their children.

    After `match_lengths` matching tokens of context (the node's own branch included), `counts` of
    the `totals` known continuations were this token. `scores` estimates the probability that the
    target accepts the whole path to the node.
    """

    fields: np.ndarray  # [6, M or more] int32: the rows below, in order
    scores: np.ndarray  # [M] float32

    @property
    def tokens(self) -> np.ndarray:
        """[M] proposed tokens."""
        return self.fields[0, : len(self.scores)]

    @property
    def parents(self) -> np.ndarray:
        """[M] row of the parent; -1: the last token of the text."""
        return self.fields[1, : len(self.scores)]

    @property
    def match_lengths(self) -> np.ndarray:
        """[M] matching tokens of context."""
        return self.fields[2, : len(self.scores)]

    @property
    def counts(self) -> np.ndarray:
        """[M] how often this token followed the match."""
        return self.fields[3, : len(self.scores)]

    @property
    def totals(self) -> np.ndarray:
        """[M] how often any token followed the match."""
        return self.fields[4, : len(self.scores)]

    @property
    def positions(self) -> np.ndarray:
        """[M] position of the token in the indexed text; -1: not in it."""
        return self.fields[5, : len(self.scores)]

    def __len__(self) -> int:
        return len(self.scores)


class TokenIndex(Protocol):
    """A growing text of tokens that finds earlier continuations of its own end."""

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens; the end of the text is what `lookup` matches."""

    def border(self) -> None:
        """End a document: nothing matches or continues across this point."""

    def lookup(self, limit: int, confidence: np.ndarray, after: Sequence[int] = ()) -> Matches:
        """At most `limit` continuation nodes of the text's end, most probable first.

        `confidence[min(m, len - 1)]` is the acceptance rate of drafts with m matching tokens. The
        tokens `after` are assumed to follow the text; they are not appended.
        """


class TextIndex:
    """The base of the hash-table indexes: a growing text whose tokens are indexed on arrival. A
    subclass makes its tables, indexes tokens and finds matches."""

    _context: int  # the last tokens that are matched

    def __init__(self) -> None:
        self._text = Text()
        self._reset()

    def __len__(self) -> int:
        return self._text.size

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens to the text."""
        self._text.append(tokens)
        self._index_new()

    def border(self) -> None:
        """End a document: nothing matches or continues across this point."""
        self._text.append_border()
        self._index_new()

    @classmethod
    def warm_up(cls) -> None:
        """Compile the index, or load it from numba's cache, before the first request."""
        index = cls()
        index.extend(np.zeros(16, dtype=np.int32))
        index.lookup(4, np.ones(2))

    def lookup(self, limit: int, confidence: np.ndarray, after: Sequence[int] = ()) -> Matches:
        """See TokenIndex."""
        end = self._text.tokens[: self._text.size]
        if len(after):
            last = end[max(0, len(end) - self._context) :]
            end = np.concatenate([last, np.array(after, dtype=np.int32)])
        fields, scores = np.empty((6, limit), dtype=np.int32), np.empty(limit, dtype=np.float32)
        size = self._find(end, np.array(confidence, dtype=np.float64), fields, scores)
        return Matches(fields, scores[:size])

    def _reset(self) -> None:
        self._indexed, self._capacity = 0, self._text.capacity
        self._make_tables(self._capacity)

    def _index_new(self) -> None:
        """Index new tokens; the whole text into larger tables where it no longer fits."""
        if self._capacity != self._text.capacity:
            self._reset()
        start, self._indexed = self._indexed, self._text.size
        self._insert(start, self._indexed)

    def _find(
        self, end: np.ndarray, confidence: np.ndarray, fields: np.ndarray, scores: np.ndarray
    ) -> int:
        """Fill fields [6, limit] and scores [limit] of Matches with the continuations of `end`, the
        end of the text; returns how many."""
        raise NotImplementedError

    def _make_tables(self, capacity: int) -> None:
        """Make empty tables for a text of up to `capacity` tokens."""
        raise NotImplementedError

    def _insert(self, first: int, last: int) -> None:
        """Insert the tokens first..last of the text into the tables."""
        raise NotImplementedError
