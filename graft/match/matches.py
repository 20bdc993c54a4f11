"""The result of an index lookup: a trie of continuations with their counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
