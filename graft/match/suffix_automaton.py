"""Continuations of the longest repeated end of a growing text, as a trie, best node first.

In a suffix automaton the suffix link of the newest state is the longest end of the text that
occurred before, so the match needs no search. SAM-Decoding (Hu et al., 2024) drafts one chain from
it. This index builds a trie by best-first search: continuations of the match, then those of its
shorter suffixes (further suffix links), weighted by the acceptance rate of matches of that length.
Shorter contexts share the probability that longer ones leave over.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graft.match.hash_table import Text, compiled
from graft.match.matches import Matches
from graft.match.suffix_states import (
    BY,
    COUNT,
    LATEST,
    LENGTH,
    LINK,
    MORE,
    NEXT,
    NONE,
    ROOT,
    TARGET,
    TO,
    TOKEN,
    Arrays,
    Automaton,
    border,
    continued,
    extend,
    grow,
    make_arrays,
    named,
    target_of,
)

LAZY_TOKENS = 32  # new tokens that the next lookup inserts: one compiled call, not two
LISTED_EDGES = 32  # per state: the oldest, which most likely include the frequent continuations
UNSEEN = 0.05  # count of all continuations not seen yet

# Columns of a trie node; the first six are the integer fields of Matches.
_NODE_TOKEN, _PARENT, _MATCH, _SEEN, _TOTAL, _POSITION, _STATE, _DEPTH = range(8)


class _Frontier(NamedTuple):
    used: np.ndarray  # [2] int64: nodes, heap entries
    nodes: np.ndarray  # [C, 8] int32
    scores: np.ndarray  # [C] float64
    heap: np.ndarray  # [C] int32, node numbers; C = LISTED_EDGES * max_backoff a found node


class _Limits(NamedTuple):
    max_backoff: int
    max_depth: int
    min_score: float


class _Context(NamedTuple):
    """A state whose continuations become children of a node."""

    state: int
    matched: int
    total: int
    share: float  # score of a continuation, per time it was seen
    min_score: float
    longest: int  # the state of the node itself, where the suffix links start
    parent: int
    depth: int


@compiled
def _push(frontier: _Frontier, node: int) -> None:
    heap, scores = frontier.heap, frontier.scores
    at = frontier.used[1]
    frontier.used[1] += 1
    while at > 0 and scores[node] > scores[heap[(at - 1) >> 1]]:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = node


@compiled
def _pop(frontier: _Frontier) -> int:
    heap, scores = frontier.heap, frontier.scores
    best = heap[0]
    frontier.used[1] -= 1
    size = frontier.used[1]
    moved = heap[size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and scores[heap[child + 1]] > scores[heap[child]]:
            child += 1
        if scores[moved] >= scores[heap[child]]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved
    return best


@compiled
def _has_longer_context(automaton: Automaton, context: _Context, token: int) -> bool:
    state = context.longest
    while state != context.state:
        if target_of(automaton.states, automaton.edges, state, token) != NONE:
            return True
        state = automaton.states[state, LINK]
    return False


@compiled
def _add_child(
    automaton: Automaton, frontier: _Frontier, context: _Context, token: int, target: int
) -> None:
    """Add a continuation, unless its score is too low or a longer context has added it."""
    states, nodes = automaton.states, frontier.nodes
    # Counts stop at COUNTED_LINKS, so a part can exceed the whole.
    count = min(states[target, COUNT], context.total)
    score = context.share * count
    if score < context.min_score or _has_longer_context(automaton, context, token):
        return
    node = frontier.used[0]
    frontier.used[0] += 1
    nodes[node, _NODE_TOKEN] = token
    nodes[node, _PARENT] = context.parent
    nodes[node, _MATCH] = context.matched
    nodes[node, _SEEN] = count
    nodes[node, _TOTAL] = context.total
    nodes[node, _POSITION] = states[target, LATEST]
    nodes[node, _STATE] = target
    nodes[node, _DEPTH] = context.depth
    frontier.scores[node] = score
    _push(frontier, node)


@compiled
def _add_children(automaton: Automaton, frontier: _Frontier, context: _Context) -> None:
    states, edges = automaton.states, automaton.edges
    token, target = states[context.state, TOKEN], states[context.state, TARGET]
    last = slot = states[context.state, MORE]
    for _ in range(LISTED_EDGES):
        _add_child(automaton, frontier, context, token, target)
        if slot < 0:
            return
        slot = edges[slot, NEXT]
        token, target = edges[slot, BY], edges[slot, TO]
        if slot == last:
            slot = -1


@compiled
def _expand(
    automaton: Automaton,
    frontier: _Frontier,
    confidence: np.ndarray,
    limits: _Limits,
    node: int,
    parent: int,
) -> None:
    """Add the continuations of a node, which is row `parent` of the result."""
    states = automaton.states
    longest = state = frontier.nodes[node, _STATE]
    matched = frontier.nodes[node, _MATCH] + 1
    depth = frontier.nodes[node, _DEPTH] + 1
    remaining = frontier.scores[node]
    for _ in range(limits.max_backoff):
        if state == ROOT or remaining < limits.min_score:
            return
        total = continued(automaton, state)
        share = remaining * confidence[min(matched, len(confidence) - 1)] / (total + UNSEEN)
        if total > 0 and share * total >= limits.min_score:
            context = _Context(
                state, matched, total, share, limits.min_score, longest, parent, depth
            )
            _add_children(automaton, frontier, context)
        remaining -= share * total
        state = states[state, LINK]
        matched = states[state, LENGTH]


@compiled
def _walk(automaton: Automaton, after: np.ndarray) -> tuple[int, int]:
    """State and length of the longest repeated end of the text followed by `after`."""
    states = automaton.states
    state = max(states[automaton.used[2], LINK], ROOT)
    matched = states[state, LENGTH]
    for token in after:
        target = target_of(states, automaton.edges, state, token)
        while target == NONE and state != ROOT:
            state = states[state, LINK]
            matched = states[state, LENGTH]
            target = target_of(states, automaton.edges, state, token)
        if target != NONE:
            state, matched = target, matched + 1
    return state, matched


@compiled
def _lookup(
    arrays: Arrays,
    text: tuple[np.ndarray, int, np.ndarray],
    frontier_arrays: tuple[np.ndarray, ...],
    confidence: np.ndarray,
    bounds: tuple[int, int, float],
    found: tuple[np.ndarray, np.ndarray],
) -> int:
    """Insert the new tokens, then fill the columns of `found` = (fields, scores), best first.

    `text` is (tokens, their number, tokens assumed to follow this time); returns how many are
    found.
    """
    tokens, stop, after = text
    extend(arrays, tokens, stop)
    fields, scores = found
    automaton = named(arrays)
    used, nodes, node_scores, heap = frontier_arrays
    frontier = _Frontier(used, nodes, node_scores, heap)
    limits = _Limits(bounds[0], bounds[1], bounds[2])
    match, matched = _walk(automaton, after)
    root = frontier.nodes[0]
    root[_STATE], root[_DEPTH], root[_MATCH] = match, 0, matched - 1
    frontier.scores[0] = 1.0
    frontier.used[0], frontier.used[1] = 1, 0
    _expand(automaton, frontier, confidence, limits, 0, -1)
    size = 0
    while size < len(scores) and frontier.used[1] > 0:
        node = _pop(frontier)
        for field in range(6):
            fields[field, size] = frontier.nodes[node, field]
        scores[size] = frontier.scores[node]
        size += 1
        if size < len(scores) and frontier.nodes[node, _DEPTH] < limits.max_depth:
            _expand(automaton, frontier, confidence, limits, node, size - 1)
    return size


NO_TOKENS = np.empty(0, np.int32)


class SuffixAutomaton:
    """The default index: exact longest match, branches by counts, microseconds per step."""

    def __init__(
        self, *, max_backoff: int = 4, max_depth: int = 32, min_score: float = 0.02
    ) -> None:
        self._limits = (max_backoff, max_depth, float(min_score))
        self._text = Text()
        self._capacity = 0
        self._arrays = make_arrays(self._capacity)
        self._frontier = self._make_frontier(32)

    def __len__(self) -> int:
        return self._text.size

    @property
    def arrays(self) -> Arrays:
        """The arrays for compiled code, valid until the next token."""
        if self._arrays[0][0] < self._text.size:
            self._insert()
        return self._arrays

    @property
    def tokens(self) -> np.ndarray:
        """The text, int32; borders are -1."""
        return self._text.tokens[: self._text.size]

    def reserve(self, length: int) -> None:
        """Allocate memory for a text of `length` tokens at once instead of by doubling."""
        self._text.reserve(length)
        self._grow_arrays()

    def extend(self, tokens: list[int] | np.ndarray) -> None:
        """Append tokens to the text."""
        self._text.append(tokens)
        self._grow_arrays()
        if len(tokens) > LAZY_TOKENS:
            self._insert()

    def border(self) -> None:
        """End a document: nothing matches or continues across this point."""
        self._insert()
        self._text.append_border()
        self._grow_arrays()
        border(self._arrays)

    def lookup(self, limit: int, confidence: np.ndarray, after: Sequence[int] = ()) -> Matches:
        """See TokenIndex."""
        if len(self._frontier[-1]) < self._frontier_size(limit):
            self._frontier = self._make_frontier(limit)
        fields = np.empty((6, limit), dtype=np.int32)
        scores = np.empty(limit, dtype=np.float32)
        trust = np.asarray(confidence, dtype=np.float64)
        assumed = np.array(after, dtype=np.int32) if len(after) else NO_TOKENS
        text, found = (self._text.tokens, self._text.size, assumed), (fields, scores)
        size = _lookup(self._arrays, text, self._frontier, trust, self._limits, found)
        return Matches(fields, scores[:size])

    @classmethod
    def warm_up(cls) -> None:
        """Compile the index, or load it from numba's cache, before the first request."""
        index = cls()
        index.extend(np.zeros(4, dtype=np.int32))
        index.border()
        index.reserve(2048)
        index.lookup(4, np.ones(2))

    def _insert(self) -> None:
        """Insert the tokens that are not in the automaton yet."""
        extend(self._arrays, self._text.tokens, self._text.size)

    def _grow_arrays(self) -> None:
        if self._capacity != self._text.capacity:
            self._capacity = self._text.capacity
            self._arrays = grow(self._arrays, self._capacity)

    def _frontier_size(self, limit: int) -> int:
        return 1 + limit * LISTED_EDGES * self._limits[0]

    def _make_frontier(self, limit: int) -> tuple[np.ndarray, ...]:
        size = self._frontier_size(limit)
        return (
            np.zeros(2, dtype=np.int64),
            np.empty((size, 8), dtype=np.int32),
            np.empty(size, dtype=np.float64),
            np.empty(size, dtype=np.int32),
        )
