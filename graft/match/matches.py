"""What an index answers to "what followed this before?": a trie of continuations with evidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Matches:
    """Continuations of the text so far, as parallel arrays; parents come before their children.

    A node says: after `match_lengths` tokens of context (its own branch included) that stood in
    the index before, `counts` of the `totals` known continuations were this token.
    `scores` is the estimated probability that the whole path down to the node comes true.
    """

    tokens: np.ndarray  # [M] int32
    parents: np.ndarray  # [M] int32, -1 hangs under the last token of the text
    match_lengths: np.ndarray  # [M] int32
    counts: np.ndarray  # [M] int32
    totals: np.ndarray  # [M] int32
    scores: np.ndarray  # [M] float32
    positions: np.ndarray  # [M] int32, where in the indexed text the token stands; -1: elsewhere

    def __len__(self) -> int:
        return len(self.tokens)


def as_matches(fields: np.ndarray, scores: np.ndarray, size: int) -> Matches:
    """The first `size` columns of fields [6, limit]: Matches' arrays in order, but scores."""
    tokens, parents, lengths, counts, totals, positions = fields[:, :size]
    return Matches(tokens, parents, lengths, counts, totals, scores[:size], positions)


class TokenIndex(Protocol):
    """A growing text of tokens that can be asked what followed its own end before."""

    def extend(self, tokens: np.ndarray) -> None:
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
