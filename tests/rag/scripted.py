"""Hand-made token streams for policies, without a model."""

import numpy as np

from graft.rag.policy import Token, Written
from graft.rag.sentences import BundledLanguage

LANGUAGE = BundledLanguage()


def tokens(*pieces):
    """Texts, or (text, probability), or (text, probability, entropy)."""
    full = [(each,) if isinstance(each, str) else each for each in pieces]
    return tuple(Token(100 + i, *each) for i, each in enumerate(full))


def written(*new, question=(), kept=(), grounded=False):
    return Written(tokens(*question), tokens(*kept), tokens(*new), grounded)


class FixedAttention:
    """The same weights in every head; records the texts of the calls."""

    def __init__(self, *answers):
        self._answers, self.asked = list(answers), []

    def __call__(self, token_ids):
        self.asked.append(list(token_ids))
        weights = np.asarray(self._answers.pop(0), float)
        assert weights.shape == (len(token_ids), len(token_ids))
        return np.stack([weights, weights])
