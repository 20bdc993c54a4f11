"""Retrieval at fixed places: FL-RAG every n tokens, FS-RAG after every sentence.

Both search with the question first and then with what was written last (Khandelwal et al. 2020 and
Trivedi et al. 2022, as DRAGIN's authors run them as baselines). Unlike there, a call ends where its
piece ends instead of writing on and throwing the rest away; the kept text is the same where the end
of a sentence does not depend on what follows it.
"""

from dataclasses import dataclass, field

from graft.rag.policy import Plan, Tokens, Written, has_sentence, sentences_of, text_of
from graft.rag.sentences import Language, find_language

FIX_LENGTHS = {"2wiki": 16, "hotpotqa": 32, "musique": 32, "strategyqa": 32, "general": 32}


@dataclass(frozen=True, slots=True)
class FixedLength:
    """FL-RAG: search again every `length` tokens, with those tokens as the query."""

    length: int = FIX_LENGTHS["general"]
    name: str = "fl"
    scored: bool = False

    def first(self, question: str) -> Plan:
        """See Policy."""
        return self._plan(0, question)

    def next(self, written: Written) -> Plan:
        """See Policy."""
        return self._plan(len(written.new), text_of(written.new).strip())

    def _plan(self, keep: int, query: str) -> Plan:
        reason = f"{self.length} tokens were written" if keep else "the question"
        return Plan(keep, query, self._enough, certain=True, reason=reason)

    def _enough(self, new: Tokens) -> bool:
        return len(new) >= self.length


@dataclass(frozen=True, slots=True)
class FixedSentence:
    """FS-RAG: search again after every sentence, with that sentence as the query."""

    language: Language = field(default_factory=find_language)
    name: str = "fs"
    scored: bool = False

    def first(self, question: str) -> Plan:
        """See Policy."""
        return Plan(0, question, self._enough, reason="the question")

    def next(self, written: Written) -> Plan:
        """See Policy."""
        sentences = sentences_of(written.new, self.language)
        if not sentences:
            return Plan(len(written.new), text_of(written.new).strip(), self._enough)
        first = sentences[0]
        return Plan(first.last, first.text, self._enough, reason="a sentence was written")

    def _enough(self, new: Tokens) -> bool:
        return has_sentence(new, self.language)
