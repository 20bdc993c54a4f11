"""How far to trust a match: learned per request from what the target accepted.

A guess made on m matching tokens comes true with a probability that differs from text to text
(quoting: near 1; free prose: low). Each request starts from priors fitted on other prompts and
counts its own hits and misses, recent ones more, so that one request never changes another's.
"""

import numpy as np

from graft.match.matches import Matches

LONGEST = 16  # matches of this length and more share an entry
# Mean hit rates of guesses with an undivided vote, by match length (entry 0 unused), fitted on the
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
PRIOR_WEIGHT = 3.0  # observations the prior is worth
DECAY = 0.96  # weight of an observation one step later
SPREAD = 0.35  # how much a hit at one length says about its neighbours


class Calibration:
    """Hit rates by match length for one sequence, and those it starts from."""

    def __init__(self, prior: np.ndarray = PRIOR) -> None:
        self._prior_hits = prior * PRIOR_WEIGHT
        self._hits = [0.0] * (LONGEST + 1)  # lists: a few numbers change at a time
        self._tries = [0.0] * (LONGEST + 1)

    def confidence(self) -> np.ndarray:
        """[LONGEST + 1] float32: estimated hit rate by match length, not falling with length."""
        rate = (self._prior_hits + self._hits) / (np.array(self._tries) + PRIOR_WEIGHT)
        return np.minimum(np.maximum(rate, 0.01), 0.995).astype(np.float32)

    def observe(self, matches: Matches, emitted: list[int]) -> None:
        """Hold a proposal, as it was before any cutting, against the tokens that came.

        So guesses are tested whether or not the target was shown them, and trust returns as soon
        as copying would pay again. At each position the guesses of the longest match stand trial.
        """
        self._hits = [DECAY * count for count in self._hits]
        self._tries = [DECAY * count for count in self._tries]
        children = _children(matches)
        node = -1
        for token in emitted:
            tried = children.get(node)
            if not tried:
                return
            length = int(matches.match_lengths[next(iter(tried.values()))])
            node = tried.get(token, -1)
            hit = node >= 0 and int(matches.match_lengths[node]) == length
            self._count(min(length, LONGEST), hit=hit)
            if node < 0:
                return

    def _count(self, length: int, *, hit: bool) -> None:
        for near in range(max(1, length - 2), min(LONGEST, length + 2) + 1):
            weight = SPREAD ** abs(near - length)
            self._tries[near] += weight
            self._hits[near] += weight * hit


def _children(matches: Matches) -> dict[int, dict[int, int]]:
    """Children of every node, token -> node, the best first; -1 is the root."""
    children: dict[int, dict[int, int]] = {}
    for node, (parent, token) in enumerate(
        zip(matches.parents.tolist(), matches.tokens.tolist(), strict=True)
    ):
        children.setdefault(parent, {})[token] = node
    return children
