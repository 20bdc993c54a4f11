"""Calibrated acceptance of lookup matches, learned per request.

How often a draft token after m matching tokens is accepted differs from text to text (quoting:
near 1; free prose: low). Each request starts from priors fitted on other prompts and counts its own
hits and misses, recent ones more. No request changes another's rates.
"""

from collections.abc import Sequence

import numpy as np

from graft.match.hash_table import compiled
from graft.match.matches import Matches

LONGEST = 16  # matches of this length and more share an entry
# Mean hit rates of matches with a single continuation, by match length (entry 0 unused), from the
# even-numbered Spec-Bench questions with smollm2-135m; see docs/log.md.
PRIOR = np.array([
    0, 0.40, 0.54, 0.61, 0.65, 0.68, 0.75, 0.80, 0.84,
    0.86, 0.86, 0.87, 0.88, 0.89, 0.90, 0.92, 0.95,
])  # fmt: skip
# The same for matches in a datastore of foreign texts, with smollm2-135m and one of 20 M tokens.
STORE_PRIOR = np.array([
    0, 0.41, 0.41, 0.41, 0.41, 0.47, 0.49, 0.57, 0.63,
    0.67, 0.72, 0.72, 0.72, 0.72, 0.72, 0.72, 0.72,
])  # fmt: skip
PRIOR_WEIGHT = 3.0  # observations that the prior counts for
DECAY = 0.96  # weight of an observation one step later
SPREAD = 0.35  # weight of an observation for the neighbouring lengths
_HITS, _TRIES = range(2)


@compiled
def decay(counts: np.ndarray) -> None:
    """Reduce the weight of all observations by one step."""
    for row in range(2):
        for length in range(LONGEST + 1):
            counts[row, length] *= DECAY


@compiled
def count_match(counts: np.ndarray, length: int, share: float, hit: int) -> None:
    """Count a draft token after so many matching tokens; neighbouring lengths count it too."""
    length = min(length, LONGEST)
    for near in range(max(1, length - 2), min(LONGEST, length + 2) + 1):
        weight = SPREAD ** abs(near - length)
        counts[_TRIES, near] += weight * share
        counts[_HITS, near] += weight * hit


@compiled
def hit_rate(counts: np.ndarray, prior: np.ndarray, length: int) -> float:
    """The estimated acceptance of a draft token after so many matching tokens."""
    length = min(length, LONGEST)
    hits = prior[length] * PRIOR_WEIGHT + counts[_HITS, length]
    return min(max(hits / (counts[_TRIES, length] + PRIOR_WEIGHT), 0.01), 0.995)


@compiled
def _rate_all(counts: np.ndarray, prior: np.ndarray, rates: np.ndarray) -> None:
    for length in range(LONGEST + 1):
        rates[length] = hit_rate(counts, prior, length)


@compiled
def _count(counts: np.ndarray, fields: np.ndarray, size: int, emitted: np.ndarray) -> None:
    """Count the draft tokens of the longest match, the first among siblings, at each position."""
    tokens, parents, lengths = fields[0], fields[1], fields[2]  # as in Matches
    decay(counts)
    node = -1
    for token in emitted:
        longest, taken = -1, -1
        for child in range(size):
            if parents[child] == node:
                if longest < 0:
                    longest = lengths[child]
                if tokens[child] == token:
                    taken = child
        if longest < 0:
            return
        hit = taken >= 0 and lengths[taken] == longest
        count_match(counts, longest, 1.0, 1 if hit else 0)
        if taken < 0:
            return
        node = taken


@compiled
def _observe(
    counts: np.ndarray,
    prior: np.ndarray,
    rates: np.ndarray,
    matches: tuple[np.ndarray, int],
    emitted: np.ndarray,
) -> None:
    """One compiled call per step."""
    fields, size = matches
    _count(counts, fields, size, emitted)
    _rate_all(counts, prior, rates)


class Calibration:
    """Hit rates by match length for one sequence, starting from `prior`."""

    def __init__(self, prior: np.ndarray = PRIOR) -> None:
        self._prior = prior
        self._counts = np.zeros((2, LONGEST + 1))
        self.rates = np.empty(LONGEST + 1)  # estimated hit rate by match length
        _rate_all(self._counts, prior, self.rates)

    def observe(self, matches: Matches, emitted: Sequence[int] | np.ndarray) -> None:
        """Compare a proposal, as it was before pruning, with the committed tokens.

        So matches are counted whether or not they were verified, and the rates rise again as soon
        as the output copies again.
        """
        tokens = np.asarray(emitted, np.int32)
        found = matches.fields, len(matches)
        _observe(self._counts, self._prior, self.rates, found, tokens)

    @classmethod
    def warm_up(cls) -> None:
        """Compile it, or load it from the cache, before the first request."""
        cls().observe(Matches(np.empty((6, 1), np.int32), np.empty(0, np.float32)), [0])
