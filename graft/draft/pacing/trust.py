"""How far to trust a draft model's own probabilities: learned per request from what came true.

A draft model that gives its guess 80 % may be right more or less often, depending on how it was
trained, on the text, and on whether it draws with the target's noise. Each request starts by
believing the model and counts its own hits and misses, recent ones more. How often the best guess
comes true at all it first takes from the requests before it (`Experience`): that decides whether
the draft model is worth reading a prompt with.
"""

from collections.abc import Sequence

import numpy as np

from graft.tree.draft_tree import DraftTree

BINS = 10  # of probabilities that share a count
PRIOR_WEIGHT = 3.0  # observations that the model's own word is worth
FIRST_HOPE = 0.8  # of a draft model's best guess, before anything is known: 0.71 to 0.95 measured
EXPERIENCE_WEIGHT = 10.0  # observations that it is worth
FIRST_ANSWER = 128.0  # tokens of an answer, before anything is known
MEMORY = 0.998  # weight of an observation one later, over all requests
DECAY = 0.96  # weight of an observation one step later
LEAST, MOST = 0.005, 0.99


class Experience:
    """How often a draft model's best guess came true, over all sequences."""

    def __init__(self) -> None:
        self._hits, self._tries = FIRST_HOPE * EXPERIENCE_WEIGHT, EXPERIENCE_WEIGHT
        self.answer = FIRST_ANSWER  # tokens of an answer

    def ended(self, tokens: int) -> None:
        """An answer had so many tokens."""
        self.answer += (tokens - self.answer) / EXPERIENCE_WEIGHT

    @property
    def hope(self) -> float:
        """What a new sequence may expect."""
        return self._hits / self._tries

    def count(self, *, hit: bool) -> None:
        """One best guess more."""
        self._hits = MEMORY * self._hits + hit
        self._tries = MEMORY * self._tries + 1


class Trust:
    """Hit rates for one sequence, by what the draft model said."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self._hits, self._tries = [0.0] * BINS, [0.0] * BINS
        self._level_hits, self._level_tries = experience.hope * PRIOR_WEIGHT, PRIOR_WEIGHT

    def believed(self, share: float) -> float:
        """How often guesses come true that the model gives this probability."""
        place = _bin(share)
        rate = (PRIOR_WEIGHT * share + self._hits[place]) / (PRIOR_WEIGHT + self._tries[place])
        return min(max(rate, LEAST), MOST)

    def all_believed(self, shares: np.ndarray) -> np.ndarray:
        """The same for many at once."""
        places = np.minimum((shares * BINS).astype(np.int64), BINS - 1)
        hits, tries = np.array(self._hits), np.array(self._tries)
        rate = (PRIOR_WEIGHT * shares + hits[places]) / (PRIOR_WEIGHT + tries[places])
        return np.clip(rate, LEAST, MOST)

    @property
    def hope(self) -> float:
        """How often the best guess at the next token comes true, before it is made."""
        return self._level_hits / self._level_tries

    def observe(self, tree: DraftTree, shares: Sequence[float], emitted: Sequence[int]) -> None:
        """Hold a draft, as it was before any cutting, against the tokens that came.

        `shares` are the model's probabilities of its nodes, each given the node's parent.
        """
        self._hits = [DECAY * hits for hits in self._hits]
        self._tries = [DECAY * tries for tries in self._tries]
        children, node = tree.children, 0
        for token in emitted:
            tried = children[node]
            if not tried:
                return
            for child in tried.values():
                self._tries[_bin(shares[child])] += 1
            best = max(tried, key=lambda each: shares[tried[each]])
            self._count_level(hit=token == best)
            if token not in tried:
                return
            node = tried[token]
            self._hits[_bin(shares[node])] += 1

    def _count_level(self, *, hit: bool) -> None:
        self._level_hits = DECAY * self._level_hits + hit
        self._level_tries = DECAY * self._level_tries + 1
        self._experience.count(hit=hit)


def _bin(share: float) -> int:
    return min(int(share * BINS), BINS - 1)
