"""Suffix arrays of token texts, sorted only as deep as a search compares.

Suffixes are ordered by their first `DEPTH` tokens, ties by position: a search compares up to 16
tokens and a draft copies up to 16 more, so the order behind them does not matter. Texts with long
repetitions (licences, logs) therefore take no longer than others. Suffixes are bucketed by their
first token; then each group of equal prefixes is sorted by the next few tokens, packed into a
64-bit key, until all groups are single or `DEPTH` is reached. Threads share the groups. Sorting
takes 11 bytes of memory per token. (pydivsufsort sorts the suffixes of every byte: two or four
times as many, completely, on one core.)
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

DEPTH = 32
SPAN = 1 << 20  # suffixes that a thread sorts at a time, or one bucket if it is larger
_RUN = 12  # keys that are sorted by insertion before they are merged

_sorting = njit(cache=True, nogil=True)


def suffix_array(text: np.ndarray, border: int, *, threads: int | None = None) -> np.ndarray:
    """Starts of the sorted suffixes as uint32; suffixes that begin with the border are left out.

    Ids are at most `border`. The text counts as followed by borders.
    """
    starts = np.zeros(border + 2, dtype=np.int64)
    _count_tokens(text, starts)
    np.cumsum(starts, out=starts)
    suffixes = np.empty(starts[border], dtype=np.uint32)
    _bucket(text, border, starts.copy(), suffixes)
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        list(pool.map(lambda span: _sort_span(text, border, suffixes, span), _spans(starts)))
    return suffixes


def _spans(starts: np.ndarray) -> list[np.ndarray]:
    """Starts of the buckets, in consecutive spans of about `SPAN` suffixes."""
    edges = np.unique(starts[:-1])
    if len(edges) < 2:
        return []
    cuts = np.unique(edges[:-1] // SPAN, return_index=True)[1]
    return [
        edges[first : last + 1]
        for first, last in zip(cuts, [*cuts[1:], len(edges) - 1], strict=True)
    ]


def _sort_span(text: np.ndarray, border: int, suffixes: np.ndarray, edges: np.ndarray) -> None:
    mine = suffixes[edges[0] : edges[-1]]
    same = np.ones(len(mine), dtype=np.bool_)
    same[edges[:-1] - edges[0]] = False
    largest = int(np.diff(edges).max())
    work = (
        np.empty(largest, dtype=np.uint64),
        np.empty(largest, dtype=np.uint64),
        np.empty(largest, dtype=np.uint32),
    )
    bits = max(int(border).bit_length(), 1)
    _sort_groups(text, mine, same, work, (border, bits, 64 // bits))


@_sorting
def _count_tokens(text: np.ndarray, starts: np.ndarray) -> None:
    for token in text:
        starts[token + 1] += 1


@_sorting
def _bucket(text: np.ndarray, border: int, heads: np.ndarray, suffixes: np.ndarray) -> None:
    """Put every suffix behind earlier ones with the same first token."""
    for at in range(len(text)):
        token = text[at]
        if token != border:
            suffixes[heads[token]] = at
            heads[token] += 1


@_sorting
def _sort_groups(
    text: np.ndarray, suffixes: np.ndarray, same: np.ndarray, work: tuple, packing: tuple
) -> None:
    """Sort by all tokens but the first; `same`: equal to the suffix before, as far as compared."""
    keys, spare_keys, spare = work
    depth = 1
    while depth < DEPTH:
        left = 0
        while left < len(suffixes):
            right = left + 1
            while right < len(suffixes) and same[right]:
                right += 1
            size = right - left
            if size > 1:
                group = suffixes[left:right]
                _pack_keys(text, group, depth, packing, keys)
                _sort_pairs(keys[:size], group, spare_keys[:size], spare[:size])
                for at in range(1, size):
                    same[left + at] = keys[at] == keys[at - 1]
            left = right
        depth += packing[2]


@_sorting
def _pack_keys(
    text: np.ndarray, group: np.ndarray, depth: int, packing: tuple, keys: np.ndarray
) -> None:
    """The tokens of each suffix from `depth` on, as many as a key holds, none beyond `DEPTH`."""
    border, bits, packed = packing
    count = min(packed, DEPTH - depth)
    for at in range(len(group)):
        key = np.uint64(0)
        for place in range(group[at] + depth, group[at] + depth + count):
            token = text[place] if place < len(text) else border
            key = (key << np.uint64(bits)) | np.uint64(token)
        keys[at] = key


@_sorting
def _sort_pairs(
    keys: np.ndarray, values: np.ndarray, other_keys: np.ndarray, other_values: np.ndarray
) -> None:
    """Sort keys and their values in place by key; equal ones keep their order."""
    size = len(keys)
    for start in range(0, size, _RUN):
        _insert_pairs(keys, values, start, min(start + _RUN, size))
    from_keys, from_values, to_keys, to_values = keys, values, other_keys, other_values
    width, moved = _RUN, False
    while width < size:
        for start in range(0, size, 2 * width):
            middle, stop = min(start + width, size), min(start + 2 * width, size)
            _merge_pairs(from_keys, from_values, to_keys, to_values, (start, middle, stop))
        from_keys, from_values, to_keys, to_values = to_keys, to_values, from_keys, from_values
        width, moved = 2 * width, not moved
    if moved:
        for at in range(size):
            keys[at], values[at] = other_keys[at], other_values[at]


@_sorting
def _insert_pairs(keys: np.ndarray, values: np.ndarray, start: int, stop: int) -> None:
    for at in range(start + 1, stop):
        key, value, place = keys[at], values[at], at
        while place > start and keys[place - 1] > key:
            keys[place], values[place] = keys[place - 1], values[place - 1]
            place -= 1
        keys[place], values[place] = key, value


@_sorting
def _merge_pairs(
    keys: np.ndarray,
    values: np.ndarray,
    to_keys: np.ndarray,
    to_values: np.ndarray,
    bounds: tuple,
) -> None:
    """Merge the sorted start..middle and middle..stop into start..stop of the other arrays."""
    start, middle, stop = bounds
    left, right = start, middle
    for at in range(start, stop):
        if right >= stop or (left < middle and keys[left] <= keys[right]):
            to_keys[at], to_values[at] = keys[left], values[left]
            left += 1
        else:
            to_keys[at], to_values[at] = keys[right], values[right]
            right += 1
