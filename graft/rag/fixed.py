"""Retrieval at fixed intervals: FL-RAG every n tokens, FS-RAG after every sentence.

Both search with the question first and then with the latest text (Khandelwal et al. 2020 and
Trivedi et al. 2022, as in the baselines of DRAGIN's authors). Unlike there, a call ends with its
piece instead of generating more and dropping it; the kept text is the same if the end of a sentence
does not depend on the text after it.
"""

from dataclasses import dataclass, field

from graft.rag.policy import Plan, Tokens, Written, has_sentence, sentences_of, text_of
from graft.rag.sentences import Language, find_language

FIX_LENGTHS = {"2wiki": 16, "hotpotqa": 32, "iirc": 32, "strategyqa": 32}  # for every model


@dataclass(frozen=True, slots=True)
class FixedLength:
    """FL-RAG: search again every `length` tokens, with those tokens as the query."""

    length: int = FIX_LENGTHS["hotpotqa"]
    name: str = "fl"
    scored: bool = False

    def first(self, question: str) -> Plan:
        """See Policy."""
        return self._plan(0, question)

    def next(self, written: Written) -> Plan:
        """See Policy."""
        return self._plan(len(written.new), text_of(written.new).strip())

    def _plan(self, keep: int, query: str) -> Plan:
        reason = f"{self.length} tokens generated" if keep else "the question"
        return Plan(keep, query, self._is_complete, certain=True, reason=reason)

    def _is_complete(self, new: Tokens) -> bool:
        return len(new) >= self.length


@dataclass(frozen=True, slots=True)
class FixedSentence:
    """FS-RAG: search again after every sentence, with that sentence as the query."""

    language: Language = field(default_factory=find_language)
    name: str = "fs"
    scored: bool = False

    def first(self, question: str) -> Plan:
        """See Policy."""
        return Plan(0, question, self._is_complete, reason="the question")

    def next(self, written: Written) -> Plan:
        """See Policy."""
        sentences = sentences_of(written.new, self.language)
        if not sentences:
            return Plan(len(written.new), text_of(written.new).strip(), self._is_complete)
        first = sentences[0]
        return Plan(first.last, first.text, self._is_complete, reason="a sentence is complete")

    def _is_complete(self, new: Tokens) -> bool:
        return has_sentence(new, self.language)
