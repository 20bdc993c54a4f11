"""What the hash-table indexes share: a text that grows and is entered as it arrives."""

import numpy as np

from graft.match.hash_table import Text
from graft.match.matches import Matches


class TextIndex:
    """The text part of a TokenIndex; a subclass makes tables for its room and enters tokens."""

    def __init__(self) -> None:
        self._text = Text()
        self._begin()

    def __len__(self) -> int:
        return self._text.size

    def token_at(self, position: int) -> int:
        """The token at a position of the text; a border is -1."""
        return self._text[position]

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens to the text."""
        self._text.append(tokens)
        self._follow()

    def border(self) -> None:
        """End a document: nothing matches or continues across this point."""
        self._text.append_border()
        self._follow()

    @classmethod
    def warm_up(cls) -> None:
        """Compile all of it, or load it from the cache, so that the first request need not."""
        index = cls()
        index.extend(np.zeros(16, dtype=np.int32))
        index.lookup(4, np.ones(2))

    def lookup(self, limit: int, confidence: np.ndarray) -> Matches:
        """See TokenIndex."""
        raise NotImplementedError

    def _begin(self) -> None:
        self._entered, self._room = 0, self._text.room
        self._make_tables(self._room)

    def _follow(self) -> None:
        """Enter what is new; all of it, into larger tables, when the text has outgrown them."""
        if self._room != self._text.room:
            self._begin()
        start, self._entered = self._entered, self._text.size
        self._enter(start, self._entered)

    def _make_tables(self, room: int) -> None:
        """Empty tables for a text of up to `room` tokens."""
        raise NotImplementedError

    def _enter(self, first: int, last: int) -> None:
        """Enter the tokens first..last of the text into the tables."""
        raise NotImplementedError
