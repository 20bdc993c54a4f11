"""When to look something up, with what query, and from where the text goes on.

A session writes an answer in calls of the model. After each it asks its policy what to do next; the
policy answers with a `Plan`: how many of the tokens just written stay, what to search for (nothing:
the next call goes without documents), and when that call has gone far enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from graft.errors import InputError
from graft.rag.sentences import Language, Span, may_end_sentence

POLICIES = {
    "fl": "FL-RAG: every N tokens, with them as the query",
    "fs": "FS-RAG: after every sentence, with it as the query",
    "flare": "FLARE: for sentences written with low probabilities",
    "dragin": "DRAGIN: for words that are uncertain and attended to",
}


def check_policy(name: str) -> None:
    """Raise InputError for an unknown policy."""
    if name not in POLICIES:
        raise InputError(f"unknown policy {name!r}; choose one of {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text; `probability` and `entropy` are the model's when it was written."""

    id: int
    text: str
    probability: float | None = None
    entropy: float | None = None


Tokens = Sequence[Token]


def text_of(tokens: Tokens) -> str:
    """What they say."""
    return "".join(token.text for token in tokens)


@dataclass(frozen=True, slots=True)
class Written:
    """The answer after a call: `kept` before it, `new` by it, `grounded` if it had documents."""

    question: Tokens
    kept: Tokens
    new: Tokens
    grounded: bool


def never(new: Tokens) -> bool:
    """A call that goes on until the model, the answer or the limit ends it."""
    return False


@dataclass(frozen=True, slots=True)
class Plan:
    """What comes next. `keep` of the tokens just written stay, the others are dropped.

    `enough` is asked after every token of the next call whether it should end there. What a
    `certain` call writes stays whatever the policy finds later, so it can be shown at once.
    `reason` says why something is looked up, for a reader.
    """

    keep: int
    query: str | None
    enough: Callable[[Tokens], bool] = field(default=never)
    certain: bool = False
    reason: str = ""


class Policy(Protocol):
    """A way to retrieve while answering. `scored`: it needs probabilities and entropies."""

    name: str
    scored: bool

    def first(self, question: str) -> Plan:
        """Before anything is written."""

    def next(self, written: Written) -> Plan:
        """After a call."""


def places(tokens: Tokens) -> list[Span]:
    """Where each token's characters stand in their text."""
    spans, start = [], 0
    for token in tokens:
        spans.append((start, start + len(token.text)))
        start += len(token.text)
    return spans


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of some tokens: its text and which of them have a part in it, blanks aside."""

    text: str
    first: int
    last: int  # behind its last token


def sentences_of(tokens: Tokens, language: Language) -> list[Sentence]:
    """The sentences of what was written; a token that two share belongs to the first."""
    text, spans = text_of(tokens), places(tokens)
    found, first = [], 0
    for start, end in language.sentences(text):
        last = first
        while last < len(spans) and spans[last][0] < end:
            last += 1
        if last > first:
            found.append(Sentence(text[start:end], first, last))
        first = last
    return found


def has_sentence(tokens: Tokens, language: Language) -> bool:
    """Whether a first sentence is over: another has begun behind it.

    Sentences are looked for only where the last token may have begun one.
    """
    if len(tokens) < 2 or not may_end_sentence(text_of(tokens[:-1])):
        return False
    return len(sentences_of(tokens, language)) > 1
