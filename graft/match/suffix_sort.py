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
    bits = max(int(border).bit_length(), 1)
    keys = np.empty(largest, dtype=np.uint64)
    _sort_groups(text, mine, same, keys, (border, bits, 64 // bits))


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
    text: np.ndarray, suffixes: np.ndarray, same: np.ndarray, keys: np.ndarray, packing: tuple
) -> None:
    """Sort by all tokens but the first; `same`: equal to the suffix before, as far as compared."""
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
                order = np.argsort(keys[:size], kind="mergesort")  # equal ones keep their order
                group[:] = group[order]
                for at in range(1, size):
                    same[left + at] = keys[order[at]] == keys[order[at - 1]]
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
