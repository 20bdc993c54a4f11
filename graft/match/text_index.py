"""The base of the hash-table indexes: a growing text whose tokens are indexed on arrival."""

from collections.abc import Sequence

import numpy as np

from graft.match.hash_table import Text
from graft.match.matches import Matches


class TextIndex:
    """The text of a TokenIndex; a subclass makes its hash tables, indexes tokens and finds
    matches."""

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
