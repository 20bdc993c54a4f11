"""Drafts from n-grams: prompt lookup (PLD) and n-gram counts (IGPG), without rescanning the text.

`NgramIndex` is prompt lookup decoding (Saxena, 2023): the earliest place of the last n tokens, n
from `max_ngram` down to 1, with a complete continuation. `NgramCounts` is IGPG, the n-gram model
of IDR2 (after ANPD): the most frequent continuation of the longest known context, token by token.

A token is inserted into hash tables once, when it arrives. N-grams with equal 64-bit hashes count
as equal; a collision costs a rejected draft at worst.
"""

import numpy as np

from graft.match.hash_table import (
    BORDER,
    compiled,
    hash_before,
    key_slot,
    mix,
    run_before,
    slots_for,
)
from graft.match.matches import TextIndex

# Rows of the block that a lookup fills: the integer fields of Matches.
_TOKEN, _PARENT, _MATCH, _COUNT, _TOTAL, _POSITION = range(6)


@compiled
def _add_link(
    text: np.ndarray, place: int, match: int, evidence: tuple, confidence: np.ndarray, chain: tuple
) -> None:
    """Add the token at `place`, `evidence` = (count, total), to the end of a chain."""
    fields, scores, size = chain
    fields[_TOKEN, size] = text[place]
    fields[_PARENT, size] = size - 1
    fields[_MATCH, size] = match
    fields[_COUNT, size] = evidence[0]
    fields[_TOTAL, size] = evidence[1]
    fields[_POSITION, size] = place
    before = scores[size - 1] if size > 0 else 1.0
    scores[size] = before * confidence[min(match, len(confidence) - 1)]


@compiled
def _insert_places(
    text: np.ndarray, start: int, stop: int, tables: tuple, max_ngram: int, length: int
) -> None:
    """Insert the n-grams whose continuation became complete with the tokens from `start` on."""
    keys, places = tables
    run = run_before(text, start, length + max_ngram)
    for at in range(start, stop):
        run = 0 if text[at] == BORDER else run + 1
        first = at - length + 1
        key = 0
        for n in range(1, min(max_ngram, run - length) + 1):
            key = mix(key, text[first - n])
            slot = key_slot(keys, key)
            if keys[slot] == 0:
                keys[slot] = key
                places[slot] = first


@compiled
def _copy_first_place(
    text: np.ndarray,
    end: np.ndarray,
    tables: tuple,
    max_ngram: int,
    confidence: np.ndarray,
    found: tuple,
) -> int:
    """Fill `found` from the first place of the longest known n-gram at the end of `end`; returns
    the chain's length."""
    keys, places = tables
    fields, scores = found
    for n in range(run_before(end, len(end), max_ngram), 0, -1):
        key = hash_before(end, len(end), n)
        slot = key_slot(keys, key)
        if keys[slot] == key:
            for at in range(len(scores)):
                _add_link(text, places[slot] + at, n, (1, 1), confidence, (fields, scores, at))
            return len(scores)
    return 0


class NgramIndex(TextIndex):
    """Prompt lookup: one chain, copied from the first occurrence of the last tokens.

    An n-gram is inserted when its continuation is complete, so the end of the text never matches
    itself, and a place too close to a border is skipped.
    """

    def __init__(self, *, max_ngram: int = 3, length: int = 10) -> None:
        self.max_ngram = self._context = max_ngram
        self.length = length
        super().__init__()

    def _find(
        self, end: np.ndarray, confidence: np.ndarray, fields: np.ndarray, scores: np.ndarray
    ) -> int:
        """The first tokens of the chain; a score multiplies n's confidence per token."""
        found = (fields, scores[: self.length])
        return _copy_first_place(
            self._text.tokens, end, self._tables, self.max_ngram, confidence, found
        )

    def _make_tables(self, capacity: int) -> None:
        slots = slots_for(self.max_ngram * capacity)
        self._tables = (np.zeros(slots, dtype=np.int64), np.empty(slots, dtype=np.int32))

    def _insert(self, first: int, last: int) -> None:
        _insert_places(self._text.tokens, first, last, self._tables, self.max_ngram, self.length)


@compiled
def _count(text: np.ndarray, start: int, stop: int, tables: tuple, max_context: int) -> None:
    """Count the tokens from `start` on after each of their contexts."""
    contexts, best, pairs, counts = tables
    run = run_before(text, start, max_context)
    for at in range(start, stop):
        key = 0
        for n in range(1, 0 if text[at] == BORDER else min(max_context, run) + 1):
            key = mix(key, text[at - n])
            context = key_slot(contexts, key)
            pair_key = mix(key, text[at])
            pair = key_slot(pairs, pair_key)
            contexts[context] = key
            pairs[pair] = pair_key
            counts[pair] += 1
            best[context, 2] += 1
            if counts[pair] >= best[context, 1]:
                best[context, 0] = at
                best[context, 1] = counts[pair]
        run = 0 if text[at] == BORDER else run + 1


@compiled
def _longest_context(
    contexts: np.ndarray, window: np.ndarray, stop: int, max_context: int
) -> tuple:
    """The slot of the longest known context that ends before `stop`, and its length or 0."""
    for n in range(min(max_context, stop), 0, -1):
        key = hash_before(window, stop, n)
        slot = key_slot(contexts, key)
        if contexts[slot] == key:
            return slot, n
    return 0, 0


@compiled
def _continue(
    text: np.ndarray,
    end: np.ndarray,
    tables: tuple,
    window: tuple,
    confidence: np.ndarray,
    found: tuple,
) -> int:
    """Fill `found` with the chain that continues `end`; returns its length."""
    contexts, best, _, _ = tables
    recent, max_context = window
    fields, scores = found
    known = run_before(end, len(end), max_context)
    for at in range(known):
        recent[at] = end[len(end) - known + at]
    for at in range(len(scores)):
        slot, n = _longest_context(contexts, recent, known, max_context)
        if n == 0:
            return at
        place, evidence = best[slot, 0], (best[slot, 1], best[slot, 2])
        _add_link(text, place, n, evidence, confidence, (fields, scores, at))
        recent[known] = text[place]
        known += 1
    return len(scores)


class NgramCounts(TextIndex):
    """A back-off n-gram model of the text: one chain, the most frequent token at each step.

    Ties go to the continuation seen last. The chain ends where no context is known.
    """

    def __init__(self, *, order: int = 5, length: int = 7) -> None:
        self.order, self._context = order, order - 1
        self.length = length
        self._window = np.empty(order + length, dtype=np.int32)
        super().__init__()

    def _find(
        self, end: np.ndarray, confidence: np.ndarray, fields: np.ndarray, scores: np.ndarray
    ) -> int:
        """The first tokens of the chain; a score is the product of the confidences."""
        found, window = (fields, scores[: self.length]), (self._window, self._context)
        return _continue(self._text.tokens, end, self._tables, window, confidence, found)

    def _make_tables(self, capacity: int) -> None:
        slots = slots_for((self.order - 1) * capacity)
        self._tables = (
            np.zeros(slots, dtype=np.int64),  # contexts
            np.zeros((slots, 3), dtype=np.int32),  # latest place of the best, its count, total
            np.zeros(slots, dtype=np.int64),  # contexts with a continuation
            np.zeros(slots, dtype=np.int32),  # their counts
        )

    def _insert(self, first: int, last: int) -> None:
        _count(self._text.tokens, first, last, self._tables, self.order - 1)
