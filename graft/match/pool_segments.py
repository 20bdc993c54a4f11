"""The segments of a pool: texts that are appended to and found by hash chains, newest place first.

Places with the same last `SHORT` or `LONG` tokens form two chains, as in the deflate format: a slot
of `heads` has the latest place, `previous` the one before each. Slots hold no keys: a lookup
compares tokens, so a collision costs one comparison. Appending a token costs two writes; nothing is
sorted, merged or moved, and memory is touched only as the text grows. A token takes 20 bytes.
"""

import numpy as np

from graft.match.continuations import count_place
from graft.match.hash_table import BORDER, compiled, mix, run_before

SHORT, LONG = 1, 8  # after a new value, such as a number, only the last token is the same
MAX_MATCH = 16
MIN_PLACES = 8  # of a match shorter than LONG: a shorter one with more places predicts better
MAX_PLACES = 64  # examined in a chain
MAX_SEGMENTS = 8  # a lookup visits all of them in one compiled call
TOKEN_BYTES = 20

_BITS = np.uint64(32)

# Rows of a segment; places in the chains count from 1. One array: numba takes it faster than three.
TEXT, HEADS, PREVIOUS = 0, 1, 3


def make_segment(capacity: int) -> np.ndarray:
    """An empty segment, [5, capacity] int32: the text, and heads and previous of both chains."""
    return np.zeros((5, capacity), np.int32)


@compiled
def _slot(key: int, slots: int) -> int:
    return np.int64(((np.uint64(key) >> _BITS) * np.uint64(slots)) >> _BITS)  # type: ignore[return-value]


@compiled
def append(segment: np.ndarray, size: int, tokens: np.ndarray) -> None:
    """Append tokens and a border to a segment of `size` tokens, which must have space for them."""
    text = segment[TEXT]
    run = run_before(text, size, LONG)
    for i in range(len(tokens)):
        at = size + i
        text[at] = tokens[i]
        run += 1
        key = 0
        for back in range(min(run, LONG)):
            key = mix(key, text[at - back])
            if back + 1 == SHORT or back + 1 == LONG:
                chain = 0 if back + 1 == SHORT else 1
                slot = _slot(key, len(text))
                segment[PREVIOUS + chain, at] = segment[HEADS + chain, slot]
                segment[HEADS + chain, slot] = at + 1
    text[size + len(tokens)] = BORDER


@compiled
def _match_length(text: np.ndarray, place: int, end: np.ndarray) -> int:
    """The number of last tokens that the text up to `place` shares with `end`."""
    run, limit = 0, min(place + 1, len(end))
    while run < limit and text[place - run] == end[len(end) - 1 - run]:
        run += 1
    return run


@compiled
def _list_places(segments: tuple, end: np.ndarray, length: int, places: np.ndarray) -> int:
    """Fill `places` with (segment, next place, matching tokens) of the latest places with at least
    `length` matching tokens and a continuation; returns how many."""
    if len(end) < length:
        return 0
    key = 0
    for back in range(length):
        key = mix(key, end[len(end) - 1 - back])
    chain, listed, examined = 0 if length == SHORT else 1, 0, 0
    for number in range(MAX_SEGMENTS):
        segment = segments[number]
        text, previous = segment[TEXT], segment[PREVIOUS + chain]
        place = segment[HEADS + chain, _slot(key, len(text))] - 1
        while place >= 0 and examined < len(places):
            examined += 1
            matched = _match_length(text, place, end)
            if matched >= length and text[place + 1] != BORDER:
                places[listed, 0], places[listed, 1] = number, place + 1
                places[listed, 2] = matched
                listed += 1
            place = previous[place] - 1
    return listed


@compiled
def _shared_length(places: np.ndarray, listed: int) -> int:
    """The greatest length that is at least LONG or that `MIN_PLACES` places match, else the
    shortest."""
    for length in range(MAX_MATCH, SHORT, -1):
        count = 0
        for at in range(listed):
            count += places[at, 2] >= length
        if count >= MIN_PLACES or (count > 0 and length >= LONG):
            return length
    return SHORT


@compiled
def count_continuations(
    segments: tuple, end: np.ndarray, places: np.ndarray, trie: tuple, depth: int
) -> int:
    """Count what followed the latest places that match the end of a text; returns how many tokens
    match, or 0. `segments` are `MAX_SEGMENTS`, newest first; the trie is empty."""
    listed = _list_places(segments, end, LONG, places)
    if listed == 0:
        listed = _list_places(segments, end, SHORT, places)
    if listed == 0:
        return 0
    length = _shared_length(places, listed)
    for at in range(listed):
        if places[at, 2] >= length:
            text = segments[places[at, 0]][TEXT]
            count_place(trie, text, places[at, 1], depth, BORDER)
    return length
