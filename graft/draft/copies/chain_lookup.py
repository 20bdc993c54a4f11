"""The most probable chain after a growing text, in one compiled call per step.

An engine with many requests leaves a drafter less than a millisecond. So one call does the work of
LookupDrafter and Calibration for a text: it compares the last chain with the committed tokens, then
follows the most probable continuation in the suffix automaton. The hit rates equal Calibration's to
the last digit; the chain is the best-first search's with only the best child of every node.
"""

import numpy as np

from graft.draft.copies.calibration import LONGEST, PRIOR, count_match, decay, hit_rate
from graft.match.hash_table import compiled
from graft.match.suffix_automaton import LISTED_EDGES, UNSEEN, SuffixAutomaton
from graft.match.suffix_states import (
    BY,
    COUNT,
    LATEST,
    LENGTH,
    LINK,
    MORE,
    NEXT,
    ROOT,
    TARGET,
    TO,
    TOKEN,
    Automaton,
    continued,
    named,
)

MAX_BACKOFF = 4
MIN_SCORE = 0.02  # a less probable draft token saves no time on any machine
_NODE_TOKEN, _MATCH, _PLACE = range(3)


@compiled
def _count(
    counts: np.ndarray, chain: np.ndarray, shares: np.ndarray, size: int, new: np.ndarray
) -> None:
    """Count the accepted tokens of the last chain, up to and with the first rejected one."""
    decay(counts)
    for at in range(min(size, len(new))):
        hit = chain[_NODE_TOKEN, at] == new[at]
        count_match(counts, chain[_MATCH, at], shares[at], 1 if hit else 0)
        if not hit:
            return


@compiled
def _most_frequent(automaton: Automaton, state: int) -> tuple[int, int, int]:
    """The most frequent continuation of a state, among equals the oldest: count, token, target."""
    states, edges = automaton.states, automaton.edges
    token, target = states[state, TOKEN], states[state, TARGET]
    count = states[target, COUNT]
    last = slot = states[state, MORE]
    for _ in range(1, LISTED_EDGES):
        if slot < 0:
            break
        slot = edges[slot, NEXT]
        if states[edges[slot, TO], COUNT] > count:
            token, target = edges[slot, BY], edges[slot, TO]
            count = states[target, COUNT]
        if slot == last:
            break
    return count, token, target


@compiled
def _walk(automaton: Automaton, counts: np.ndarray, prior: np.ndarray, draft: tuple) -> int:
    """Fill the chain, its shares and its path probabilities; returns its length."""
    chain, shares, scores = draft
    states = automaton.states
    state = max(states[automaton.used[2], LINK], ROOT)
    matched, score = states[state, LENGTH], 1.0
    for at in range(len(scores)):
        remaining, best, token, target, length, voted = 1.0, 0.0, 0, ROOT, 0, 0.0
        for _ in range(MAX_BACKOFF):
            if state == ROOT or remaining <= best:
                break
            total = continued(automaton, state)
            if total > 0:
                share = remaining * hit_rate(counts, prior, matched) / (total + UNSEEN)
                count, offered, to = _most_frequent(automaton, state)
                if share * min(count, total) > best:
                    best, token, target = share * min(count, total), offered, to
                    length, voted = matched, remaining * min(count, total) / (total + UNSEEN)
                remaining -= share * total
            state = states[state, LINK]
            matched = states[state, LENGTH]
        score *= best
        if score < MIN_SCORE:
            return at
        chain[_NODE_TOKEN, at], chain[_MATCH, at] = token, length
        chain[_PLACE, at] = states[target, LATEST]
        shares[at], scores[at] = voted, score
        state, matched = target, length + 1
    return len(scores)


@compiled
def _count_and_walk(
    arrays: tuple, counts: np.ndarray, prior: np.ndarray, draft: tuple, size: int, new: np.ndarray
) -> int:
    chain, shares, _ = draft
    _count(counts, chain, shares, size, new)
    return _walk(named(arrays), counts, prior, draft)


@compiled
def _begins_with(tokens: np.ndarray, beginning: np.ndarray) -> bool:
    # Backwards: texts with a shared instruction differ near the end.
    for at in range(len(beginning) - 1, -1, -1):
        if tokens[at] != beginning[at]:
            return False
    return True


class ChainLookup:
    """One growing text, and chains of at most `max_length` tokens that followed its end before, in
    the text itself or in others."""

    def __init__(self, max_length: int, prior: np.ndarray = PRIOR) -> None:
        self._index = SuffixAutomaton()
        self._counts = np.zeros((2, LONGEST + 1))
        self._prior = np.array(prior, dtype=np.float64)
        self._chain = np.empty((3, max_length), dtype=np.int32)
        self._shares, self._scores = np.empty(max_length), np.empty(max_length)
        self._size = self._begin = 0

    def __len__(self) -> int:
        """Tokens of the growing text."""
        return len(self._index) - self._begin

    @property
    def text(self) -> np.ndarray:
        """The growing text, int32."""
        return self._index.tokens[self._begin :]

    def is_prefix_of(self, tokens: np.ndarray) -> bool:
        """Whether these tokens (int32) start with the whole growing text."""
        return len(tokens) >= len(self) and _begins_with(tokens, self.text)

    def add(self, other: np.ndarray) -> int:
        """Let chains follow another text (int32) too, before the growing one has tokens; the place
        after its end."""
        self._index.extend(other)
        self._index.border()
        self._begin = len(self._index)
        return self._begin

    def reserve(self, length: int) -> None:
        """Allocate memory for a text of this length."""
        self._index.reserve(length)

    def extend(self, new: np.ndarray) -> np.ndarray:
        """Append tokens and draft the next chain; the probabilities [n] of its paths."""
        self._index.extend(new)
        self._size = _count_and_walk(
            self._index.arrays,
            self._counts,
            self._prior,
            (self._chain, self._shares, self._scores),
            self._size,
            new,
        )
        return self._scores[: self._size]

    def tokens(self, count: int) -> list[int]:
        """The first tokens of the last chain."""
        return self._chain[_NODE_TOKEN, : min(count, self._size)].tolist()

    def place(self) -> int:
        """Where the first token of the last chain was copied from: other texts, each with a border
        behind it, then the growing one."""
        return int(self._chain[_PLACE, 0])

    @classmethod
    def warm_up(cls) -> None:
        """Compile it, or load it from the cache, before the first request."""
        SuffixAutomaton.warm_up()
        text = cls(4)
        text.extend(np.array([1, 2, 3, 1, 2], dtype=np.int32))
        text.extend(np.array([3], dtype=np.int32))
        text.is_prefix_of(np.array([1, 2, 3, 1, 2, 3], dtype=np.int32))
