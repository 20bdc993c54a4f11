"""FLARE (Jiang et al. 2023): retrieve for sentences that the model generates with low probability.

A tentative text, without documents, is checked sentence by sentence. A sentence whose tokens have a
mean of 1 - p above the threshold is dropped, with everything after it. The query is that sentence
without its unlikely tokens (1 - p above the same threshold). The next call continues from before
the sentence, with documents, and is kept whole. Thresholds are those of DRAGIN's authors for this
baseline. The tentative call ends with the first such sentence: later text would be dropped.
"""

from dataclasses import dataclass, field
from statistics import fmean

from graft.errors import InputError
from graft.rag.policy import Plan, Token, Tokens, Written, sentences_of, text_of
from graft.rag.sentences import Language, find_language, may_end_sentence

# By the model they were chosen for and the family of questions
THRESHOLDS = {
    "7b": {"2wiki": 0.10, "hotpotqa": 0.08, "iirc": 0.08, "strategyqa": 0.10},
    "13b": {"2wiki": 0.08, "hotpotqa": 0.10, "iirc": 0.10, "strategyqa": 0.06},
    "vicuna-13b": {"2wiki": 0.10, "hotpotqa": 0.10, "iirc": 0.40, "strategyqa": 0.10},
}


@dataclass(frozen=True, slots=True)
class Flare:
    """Retrieve when the mean of 1 - p over a tentative sentence is above `threshold`."""

    threshold: float = THRESHOLDS["7b"]["hotpotqa"]
    language: Language = field(default_factory=find_language)
    name: str = "flare"
    scored: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"FLARE's threshold must be from 0 to 1, not {self.threshold}")

    def first(self, question: str) -> Plan:
        """See Policy."""
        return self._tentative(0)

    def next(self, written: Written) -> Plan:
        """See Policy."""
        if written.grounded:
            return self._tentative(len(written.new))
        for sentence in sentences_of(written.new, self.language):
            tokens = written.new[sentence.first : sentence.last]
            if (doubt := doubt_of(tokens)) > self.threshold:
                reason = f"mean 1 - p {doubt:.2f} in: {sentence.text}"
                query = self._query(tokens) or sentence.text
                return Plan(sentence.first, query, certain=True, reason=reason)
        return self._tentative(len(written.new))

    def _tentative(self, keep: int) -> Plan:
        return Plan(keep, None, self._is_complete)

    def _is_complete(self, new: Tokens) -> bool:
        """Whether a complete sentence is above the threshold; the last one may be incomplete."""
        if len(new) < 2 or not may_end_sentence(text_of(new[:-1])):
            return False
        complete = sentences_of(new, self.language)[:-1]
        return any(doubt_of(new[each.first : each.last]) > self.threshold for each in complete)

    def _query(self, tokens: Tokens) -> str:
        """The sentence without its unlikely tokens; the blank before a dropped token stays, so that
        parts of different words are not joined."""
        kept = [
            token.text if doubt_of([token]) <= self.threshold else _space_before(token.text)
            for token in tokens
        ]
        return " ".join("".join(kept).split())


def doubt_of(tokens: Tokens) -> float:
    """The mean of 1 - p."""
    return fmean(1 - probability(token) for token in tokens)


def probability(token: Token) -> float:
    """The probability that the model gave the token."""
    assert token.probability is not None, "the call was made without scores"
    return token.probability


def _space_before(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
