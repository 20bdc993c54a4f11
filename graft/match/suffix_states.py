"""The states and transitions of a growing suffix automaton, in flat arrays.

A state stands for the strings that end at the same places of the text (Blumer et al., 1985);
appending a token costs amortised O(1). Each state counts the places where it ends and keeps the
latest. Both are updated along the suffix links of every new token, at most `COUNTED_LINKS` of
them, so that a text of one repeated token stays linear; the shortest contexts of such a text are
counted too low.

The first transition of a state lies in its row, as most states have only one. Further ones are in
a hash table keyed by (state, token) and chained per state, oldest first. A border takes a place
in the text and a state, but no transition leads to that state, so nothing crosses it.
"""

from typing import NamedTuple

import numpy as np

from graft.match.hash_table import compiled, pair_slot, slots_for

COUNTED_LINKS = 64

NONE = 0  # no state
ROOT = 1  # the empty string
# Columns of a state: longest string, suffix link, places, latest place, places at the end of a
# document, first transition (token, target), last of its further transitions (a slot, or -1).
LENGTH, LINK, COUNT, LATEST, ENDS, TOKEN, TARGET, MORE = range(8)
# Columns of a further transition: state, token, target, slot of the next one (a ring).
FROM, BY, TO, NEXT = range(4)


class Automaton(NamedTuple):
    """What the compiled functions work on; they change it in place and never grow it."""

    used: np.ndarray  # [3] int64: tokens, states (the unused state 0 included), newest state
    states: np.ndarray  # [2n + 2, 8] int32
    edges: np.ndarray  # [slots, 4] int32; a text of n tokens has at most n further transitions


# Numba takes a plain tuple from Python several times faster than a named one.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@compiled
def named(arrays: Arrays) -> Automaton:
    """The arrays under their names, for compiled code."""
    return Automaton(arrays[0], arrays[1], arrays[2])


def make_arrays(capacity: int) -> Arrays:
    """The automaton of an empty text with memory for `capacity` tokens."""
    states = np.empty((2 * capacity + 2, 8), dtype=np.int32)
    states[: ROOT + 1] = 0
    states[ROOT, MORE] = -1
    edges = np.zeros((slots_for(capacity), 4), dtype=np.int32)
    return np.array([0, ROOT + 1, ROOT]), states, edges


def grow(arrays: Arrays, capacity: int) -> Arrays:
    """The same automaton with memory for `capacity` tokens; the old arrays must not be used."""
    used, states, edges = arrays
    _, new_states, new_edges = make_arrays(capacity)
    new_states[: used[1]] = states[: used[1]]
    _rehash(new_states, used[1], edges, new_edges)
    return used, new_states, new_edges


@compiled
def _slot(edges: np.ndarray, state: int, token: int) -> int:
    """Where the transition is, or the free slot where it would go."""
    mask = len(edges) - 1
    slot = pair_slot(state, token, mask)
    while edges[slot, FROM] != NONE:
        if edges[slot, FROM] == state and edges[slot, BY] == token:
            break
        slot = (slot + 1) & mask
    return slot


@compiled
def target_of(states: np.ndarray, edges: np.ndarray, state: int, token: int) -> int:
    """Where a token leads from a state, or `NONE`."""
    first = states[state, TARGET]
    if first != NONE and states[state, TOKEN] == token:
        return first
    if states[state, MORE] < 0:
        return NONE
    return edges[_slot(edges, state, token), TO]


@compiled
def _add_edge(states: np.ndarray, edges: np.ndarray, state: int, token: int, target: int) -> None:
    if states[state, TARGET] == NONE:
        states[state, TOKEN] = token
        states[state, TARGET] = target
        return
    slot = _slot(edges, state, token)
    edges[slot, FROM] = state
    edges[slot, BY] = token
    edges[slot, TO] = target
    last = states[state, MORE]
    if last >= 0:
        edges[slot, NEXT] = edges[last, NEXT]
        edges[last, NEXT] = slot
    else:
        edges[slot, NEXT] = slot
    states[state, MORE] = slot


@compiled
def _redirect(states: np.ndarray, edges: np.ndarray, state: int, token: int, target: int) -> None:
    if states[state, TOKEN] == token:
        states[state, TARGET] = target
    else:
        edges[_slot(edges, state, token), TO] = target


@compiled
def _copy_further_edges(
    states: np.ndarray, edges: np.ndarray, last: int, new_edges: np.ndarray, state: int
) -> None:
    """Give `state` the ring that ends at slot `last`, oldest first."""
    if last < 0:
        return
    slot = last
    while True:
        slot = edges[slot, NEXT]
        _add_edge(states, new_edges, state, edges[slot, BY], edges[slot, TO])
        if slot == last:
            return


@compiled
def _rehash(states: np.ndarray, used: int, edges: np.ndarray, new_edges: np.ndarray) -> None:
    """Move all further transitions to another table."""
    for state in range(ROOT, used):
        last = states[state, MORE]
        states[state, MORE] = -1
        _copy_further_edges(states, edges, last, new_edges, state)


@compiled
def _new_state(used: np.ndarray, states: np.ndarray) -> int:
    """One token longer than the newest state, at the next place of the text."""
    state = used[1]
    states[state, LENGTH] = states[used[2], LENGTH] + 1
    states[state, LINK] = ROOT
    states[state, COUNT] = 1
    states[state, LATEST] = used[0]
    states[state, ENDS] = 0
    states[state, TARGET] = NONE
    states[state, MORE] = -1
    used[0] += 1
    used[1] += 1
    used[2] = state
    return state


@compiled
def _split(
    used: np.ndarray, states: np.ndarray, edges: np.ndarray, shorter: int, token: int
) -> int:
    """Make `shorter` + `token` a state of its own, apart from the longer strings there."""
    state = target_of(states, edges, shorter, token)
    clone = used[1]
    used[1] += 1
    for column in range(MORE):
        states[clone, column] = states[state, column]
    states[clone, LENGTH] = states[shorter, LENGTH] + 1
    states[clone, MORE] = -1
    _copy_further_edges(states, edges, states[state, MORE], edges, clone)
    while shorter != NONE and target_of(states, edges, shorter, token) == state:
        _redirect(states, edges, shorter, token, clone)
        shorter = states[shorter, LINK]
    states[state, LINK] = clone
    return clone


@compiled
def _append(used: np.ndarray, states: np.ndarray, edges: np.ndarray, token: int) -> None:
    end = used[2]
    newest = _new_state(used, states)
    known = NONE
    while end != NONE:
        known = target_of(states, edges, end, token)
        if known != NONE:
            break
        _add_edge(states, edges, end, token, newest)
        end = states[end, LINK]
    if known == NONE:
        return
    if states[end, LENGTH] + 1 != states[known, LENGTH]:
        known = _split(used, states, edges, end, token)
    states[newest, LINK] = known
    for _ in range(COUNTED_LINKS):
        if known == ROOT:
            break
        states[known, COUNT] += 1
        states[known, LATEST] = states[newest, LATEST]
        known = states[known, LINK]


@compiled
def extend(arrays: Arrays, text: np.ndarray, stop: int) -> None:
    """Append the tokens of `text` up to `stop` that are not in the automaton yet."""
    used, states, edges = arrays
    for at in range(used[0], stop):
        _append(used, states, edges, text[at])


@compiled
def border(arrays: Arrays) -> None:
    """End a document."""
    used, states, _ = arrays
    state = used[2]
    for _link in range(COUNTED_LINKS + 1):
        if state == ROOT:
            break
        states[state, ENDS] += 1
        state = states[state, LINK]
    _new_state(used, states)


@compiled
def continued(automaton: Automaton, state: int) -> int:
    """How many of the counted places of a state have a next token."""
    states = automaton.states
    at_end = states[state, LATEST] == automaton.used[0] - 1
    return states[state, COUNT] - states[state, ENDS] - at_end
