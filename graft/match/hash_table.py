"""Hashing, probing and a growing text: the flat arrays under the compiled indexes.

Tables have a power of two of slots, are at most three quarters full and are probed linearly.
"""

import numpy as np
from numba import njit

from graft.errors import InputError

# `_nrt` is private to numba: it turns reference counting off. These functions create no array, and
# with counting a lookup of the suffix automaton takes 26 us instead of 9 (`forceinline`: 22). It is
# used here alone; tests/match/test_hash_table.py names the version of numba if it changes.
# Other threads run meanwhile: a datastore search may wait for the disk.
compiled = njit(cache=True, nogil=True, _nrt=False)

BORDER = -1  # separates two documents in the text

_ODD = np.uint64(0x9E3779B97F4A7C15)
_ODD_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)


def slots_for(entries: int) -> int:
    """Slots that keep a table of `entries` at most three quarters full."""
    return 1 << max(4, (4 * entries // 3).bit_length())


@compiled
def mix(state: int, token: int) -> int:
    """A 64-bit hash (never 0) of the tokens hashed in `state`, followed by `token`."""
    mixed = (np.uint64(state) ^ np.uint64(token + 1)) * _ODD
    mixed = (mixed ^ (mixed >> _HALF)) * _ODD_2
    return np.int64(mixed ^ (mixed >> _HALF)) | 1  # type: ignore[return-value]


@compiled
def pair_slot(left: int, right: int, mask: int) -> int:
    """The first slot to probe for a pair of small numbers."""
    mixed = np.uint64(left) * _ODD + np.uint64(right) * _ODD_2
    return np.int64(mixed >> _HALF) & mask  # type: ignore[return-value]


@compiled
def key_slot(keys: np.ndarray, key: int) -> int:
    """The slot that holds a key made by `mix`, or the free slot (0) where it would go."""
    mask = len(keys) - 1
    slot = (key >> 1) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@compiled
def hash_before(text: np.ndarray, stop: int, length: int) -> int:
    """The hash of the `length` tokens before `stop`: `mix` over them, the last token first."""
    key = 0
    for back in range(1, length + 1):
        key = mix(key, text[stop - back])
    return key


@compiled
def run_before(text: np.ndarray, stop: int, limit: int) -> int:
    """The number of tokens between the last border and `stop`, at most `limit`."""
    run = 0
    while run < min(limit, stop) and text[stop - 1 - run] != BORDER:
        run += 1
    return run


@compiled
def run_after(text: np.ndarray, start: int, stop: int) -> int:
    """The number of tokens from `start` to the next border, or to `stop`."""
    run = 0
    while start + run < stop and text[start + run] != BORDER:
        run += 1
    return run


class Text:
    """Tokens in an array that grows by doubling; a document ends with `BORDER`."""

    __slots__ = ("size", "tokens")

    def __init__(self) -> None:
        self.tokens = np.empty(0, dtype=np.int32)
        self.size = 0

    @property
    def capacity(self) -> int:
        """The length up to which the array is not replaced by a larger one."""
        return len(self.tokens)

    def reserve(self, length: int) -> None:
        """Allocate memory for `length` tokens and a quarter more, if needed."""
        if length <= self.capacity:
            return
        grown = np.empty(max(length + length // 4, 2 * self.capacity, 1024), dtype=np.int32)
        grown[: self.size] = self.tokens[: self.size]
        self.tokens = grown

    def append(self, tokens: list[int] | np.ndarray) -> None:
        """Copy tokens to the end."""
        stop = self.size + len(tokens)
        self.reserve(stop)
        self.tokens[self.size : stop] = tokens
        # A short list is checked faster in Python.
        lowest = min(tokens, default=0) if isinstance(tokens, list) else tokens.min(initial=0)
        if lowest < 0:
            raise InputError(f"token {lowest} is negative; token ids start at 0")
        self.size = stop

    def append_border(self) -> None:
        """End a document."""
        self.reserve(self.size + 1)
        self.tokens[self.size] = BORDER
        self.size += 1
