"""The likeliest chain after a growing text, trusted by what came true: one compiled call a step.

Engines that check chains for many requests at once leave a drafter less than a millisecond. So
what LookupDrafter and Calibration do node by node is done here in one call for a text: hold the
last chain against what came, then walk the suffix automaton along the likeliest continuation. The
hit rates are Calibration's, to the last digit; the chain is the best-first search's with all but
the best child of every node left out.
"""

import numpy as np

from graft.draft.copies.calibration import LONGEST, PRIOR, count_guess, fade, hit_rate
from graft.match.hash_table import compiled
from graft.match.suffix_automaton import LISTED_EDGES, UNSEEN, SuffixAutomaton
from graft.match.suffix_states import (
    BY,
    COUNT,
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
MIN_SCORE = 0.02  # a guess less likely than this pays nowhere
_NODE_TOKEN, _MATCH = range(2)


@compiled
def _judge(
    trust: np.ndarray, chain: np.ndarray, shares: np.ndarray, size: int, came: np.ndarray
) -> None:
    """Count which guesses of the last chain came true, down to the first that did not."""
    fade(trust)
    for at in range(min(size, len(came))):
        hit = chain[_NODE_TOKEN, at] == came[at]
        count_guess(trust, chain[_MATCH, at], shares[at], 1 if hit else 0)
        if not hit:
            return


@compiled
def _most_frequent(automaton: Automaton, state: int) -> tuple[int, int, int]:
    """The continuation of a state seen most often, of equals the oldest: count, token, target."""
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
def _walk(automaton: Automaton, trust: np.ndarray, prior: np.ndarray, guess: tuple) -> int:
    """Fill the chain, its shares and the probabilities of its paths; returns how long it is."""
    chain, shares, scores = guess
    states = automaton.states
    state = max(states[automaton.used[2], LINK], ROOT)
    matched, score = states[state, LENGTH], 1.0
    for at in range(len(scores)):
        rest, best, token, target, length, voted = 1.0, 0.0, 0, ROOT, 0, 0.0
        for _ in range(MAX_BACKOFF):
            if state == ROOT or rest <= best:
                break
            total = continued(automaton, state)
            if total > 0:
                share = rest * hit_rate(trust, prior, matched) / (total + UNSEEN)
                count, offered, to = _most_frequent(automaton, state)
                if share * min(count, total) > best:
                    best, token, target = share * min(count, total), offered, to
                    length, voted = matched, rest * min(count, total) / (total + UNSEEN)
                rest -= share * total
            state = states[state, LINK]
            matched = states[state, LENGTH]
        score *= best
        if score < MIN_SCORE:
            return at
        chain[_NODE_TOKEN, at], chain[_MATCH, at] = token, length
        shares[at], scores[at] = voted, score
        state, matched = target, length + 1
    return len(scores)


@compiled
def _judge_and_walk(
    arrays: tuple, trust: np.ndarray, prior: np.ndarray, guess: tuple, size: int, came: np.ndarray
) -> int:
    chain, shares, _ = guess
    _judge(trust, chain, shares, size, came)
    return _walk(named(arrays), trust, prior, guess)


@compiled
def _begins_with(tokens: np.ndarray, beginning: np.ndarray) -> bool:
    # From the end: texts that differ mostly differ there, after a shared instruction.
    for at in range(len(beginning) - 1, -1, -1):
        if tokens[at] != beginning[at]:
            return False
    return True


class ChainLookup:
    """One text, and chains of at most `longest` tokens that stood after its end before."""

    def __init__(self, longest: int, prior: np.ndarray = PRIOR) -> None:
        self._index = SuffixAutomaton()
        self._trust = np.zeros((2, LONGEST + 1))
        self._prior = np.array(prior, dtype=np.float64)
        self._chain = np.empty((2, longest), dtype=np.int32)
        self._shares, self._scores = np.empty(longest), np.empty(longest)
        self._size = 0

    def __len__(self) -> int:
        """Tokens of the text."""
        return len(self._index)

    def begins(self, tokens: np.ndarray) -> bool:
        """Whether these tokens (int32) start with the whole text."""
        return len(tokens) >= len(self) and _begins_with(tokens, self._index.tokens)

    def reserve(self, length: int) -> None:
        """Make room for a text of so many tokens at once."""
        self._index.reserve(length)

    def extend(self, came: np.ndarray) -> np.ndarray:
        """Add what came, and guess: the probabilities [n] that the chain's paths come true."""
        self._index.extend(came)
        self._size = _judge_and_walk(
            self._index.arrays,
            self._trust,
            self._prior,
            (self._chain, self._shares, self._scores),
            self._size,
            came,
        )
        return self._scores[: self._size]

    def tokens(self, count: int) -> list[int]:
        """The first tokens of the chain guessed last."""
        return self._chain[_NODE_TOKEN, : min(count, self._size)].tolist()

    def hit_rates(self) -> np.ndarray:
        """[LONGEST + 1] how often guesses come true, by the length of their match."""
        return np.array(
            [hit_rate(self._trust, self._prior, length) for length in range(LONGEST + 1)]
        )

    @classmethod
    def warm_up(cls) -> None:
        """Compile all of it, or load it from the cache, so that the first request need not."""
        SuffixAutomaton.warm_up()
        text = cls(4)
        text.extend(np.array([1, 2, 3, 1, 2], dtype=np.int32))
        text.extend(np.array([3], dtype=np.int32))
        text.begins(np.array([1, 2, 3, 1, 2, 3], dtype=np.int32))
