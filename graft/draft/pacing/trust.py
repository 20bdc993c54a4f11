"""Calibrates a draft model's probabilities: how often tokens of a given probability are accepted.

A token that the draft model gives 80 % may be accepted more or less often, depending on its
training, the text, and the noise it samples with. Each request starts with the model's own
probability and counts acceptances, recent ones more. The acceptance rate of the best token starts
from earlier requests (`Experience`): it decides whether the draft model prefills a prompt at all.
"""

from collections.abc import Sequence

import numpy as np

from graft.tree.draft_tree import DraftTree

BINS = 10  # probability ranges that share a count
PRIOR_WEIGHT = 3.0  # observations that the model's own probability counts for
FIRST_RATE = 0.8  # acceptance of the best token before any observation: 0.71 to 0.95 measured
EXPERIENCE_WEIGHT = 10.0  # observations that earlier requests count for
FIRST_ANSWER = 128.0  # tokens of an answer, before any finished
MEMORY = 0.998  # weight of an observation one later, over all requests
DECAY = 0.96  # weight of an observation one step later
MIN_RATE, MAX_RATE = 0.005, 0.99


class Experience:
    """Acceptance of a draft model's best token, over all sequences."""

    def __init__(self) -> None:
        self._hits, self._tries = FIRST_RATE * EXPERIENCE_WEIGHT, EXPERIENCE_WEIGHT
        self.answer = FIRST_ANSWER  # tokens of an answer

    def ended(self, tokens: int) -> None:
        """Count a finished answer of so many tokens."""
        self.answer += (tokens - self.answer) / EXPERIENCE_WEIGHT

    @property
    def expected_rate(self) -> float:
        """The acceptance rate that a new sequence starts with."""
        return self._hits / self._tries

    def count(self, *, hit: bool) -> None:
        """Count a verified best token."""
        self._hits = MEMORY * self._hits + hit
        self._tries = MEMORY * self._tries + 1


class Trust:
    """Acceptance rates of one sequence by the draft model's probability."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self._hits, self._tries = [0.0] * BINS, [0.0] * BINS
        self._level_hits, self._level_tries = experience.expected_rate * PRIOR_WEIGHT, PRIOR_WEIGHT

    def calibrated(self, prob: float) -> float:
        """The acceptance rate of tokens with this probability."""
        place = _bin(prob)
        rate = (PRIOR_WEIGHT * prob + self._hits[place]) / (PRIOR_WEIGHT + self._tries[place])
        return min(max(rate, MIN_RATE), MAX_RATE)

    def calibrated_all(self, probs: np.ndarray) -> np.ndarray:
        """The same for many at once."""
        places = np.minimum((probs * BINS).astype(np.int64), BINS - 1)
        hits, tries = np.array(self._hits), np.array(self._tries)
        rate = (PRIOR_WEIGHT * probs + hits[places]) / (PRIOR_WEIGHT + tries[places])
        return np.clip(rate, MIN_RATE, MAX_RATE)

    @property
    def expected_rate(self) -> float:
        """The acceptance rate of the best next token, whatever its probability."""
        return self._level_hits / self._level_tries

    def observe(self, tree: DraftTree, probs: Sequence[float], emitted: Sequence[int]) -> None:
        """Count a draft, as it was before pruning, and the tokens that the target generated.

        `probs` are the model's probabilities of its nodes, each given the node's parent.
        """
        self._hits = [DECAY * hits for hits in self._hits]
        self._tries = [DECAY * tries for tries in self._tries]
        children, node = tree.children, 0
        for token in emitted:
            tried = children[node]
            if not tried:
                return
            for child in tried.values():
                self._tries[_bin(probs[child])] += 1
            best = max(tried, key=lambda each: probs[tried[each]])
            self._count_level(hit=token == best)
            if token not in tried:
                return
            node = tried[token]
            self._hits[_bin(probs[node])] += 1

    def _count_level(self, *, hit: bool) -> None:
        self._level_hits = DECAY * self._level_hits + hit
        self._level_tries = DECAY * self._level_tries + 1
        self._experience.count(hit=hit)


def _bin(prob: float) -> int:
    return min(int(prob * BINS), BINS - 1)
