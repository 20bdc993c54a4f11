"""What an index answers to "what followed this before?": a trie of continuations with evidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Matches:
    """Continuations of the text so far, as parallel rows; parents come before their children.

    A node says: after `match_lengths` tokens of context (its own branch included) that stood in
    the index before, `counts` of the `totals` known continuations were this token.
    `scores` is the estimated probability that the whole path down to the node comes true.
    """

    fields: np.ndarray  # [6, M or more] int32: the rows below, in order
    scores: np.ndarray  # [M] float32

    @property
    def tokens(self) -> np.ndarray:
        """[M] what may come."""
        return self.fields[0, : len(self.scores)]

    @property
    def parents(self) -> np.ndarray:
        """[M] -1 hangs under the last token of the text."""
        return self.fields[1, : len(self.scores)]

    @property
    def match_lengths(self) -> np.ndarray:
        """[M] tokens of context that stood in the index before."""
        return self.fields[2, : len(self.scores)]

    @property
    def counts(self) -> np.ndarray:
        """[M] how often this token came then."""
        return self.fields[3, : len(self.scores)]

    @property
    def totals(self) -> np.ndarray:
        """[M] how often any did."""
        return self.fields[4, : len(self.scores)]

    @property
    def positions(self) -> np.ndarray:
        """[M] where in the indexed text the token stands; -1: elsewhere."""
        return self.fields[5, : len(self.scores)]

    def __len__(self) -> int:
        return len(self.scores)


class TokenIndex(Protocol):
    """A growing text of tokens that can be asked what followed its own end before."""

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens; the end of the text is what `lookup` matches."""

    def border(self) -> None:
        """End a document: nothing matches or continues across this point."""

    def lookup(self, limit: int, confidence: np.ndarray) -> Matches:
        """At most `limit` continuation nodes of the text's end, most probable first.

        `confidence[min(m, len - 1)]` is how often a guess made on m matching tokens comes true.
        """


class FarSighted(TokenIndex, Protocol):
    """One that can also be asked what would follow if the text went on in some way."""

    def lookup_after(self, tokens: Sequence[int], limit: int, confidence: np.ndarray) -> Matches:
        """As `lookup`, as if `tokens` stood at the end of the text; they are not kept."""
