"""The protocol of retrieval policies: when to retrieve, with which query, and what text to keep.

A session generates an answer in calls of the model. Before each call its policy returns a `Plan`:
how many of the last tokens are kept, the query (None: the next call has no documents), and when
that call ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from graft.errors import InputError
from graft.rag.sentences import Language, Span, may_end_sentence

POLICIES = ("fl", "fs", "flare", "dragin")
TUNED_FOR = ("7b", "13b", "vicuna-13b")  # LLaMA2-7B, LLaMA2-13B, Vicuna-13B


def check_policy(name: str, thresholds: str) -> None:
    """Raise InputError for an unknown policy, or thresholds that were not published."""
    if name not in POLICIES:
        raise InputError(f"unknown policy {name!r}; choose one of {', '.join(POLICIES)}")
    if thresholds not in TUNED_FOR:
        raise InputError(
            f"no thresholds were published for {thresholds!r}; choose those for one of "
            f"{', '.join(TUNED_FOR)}, or set a number with threshold"
        )


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text; `probability` and `entropy` are those of the model's distribution."""

    id: int
    text: str
    probability: float | None = None
    entropy: float | None = None


Tokens = Sequence[Token]


def text_of(tokens: Tokens) -> str:
    """The text of the tokens."""
    return "".join(token.text for token in tokens)


@dataclass(frozen=True, slots=True)
class Written:
    """The answer after a call: tokens `kept` before, `new` ones; `grounded`: it had documents."""

    question: Tokens
    kept: Tokens
    new: Tokens
    grounded: bool


def never(new: Tokens) -> bool:
    """The call ends with the model's end, the answer or max_tokens only."""
    return False


@dataclass(frozen=True, slots=True)
class Plan:
    """The next call. The first `keep` new tokens are kept, the others are dropped.

    `is_complete` is called after every token of the call; True ends it. The output of a `certain`
    call is always kept, so it can be streamed. `reason` explains the retrieval to the user.
    """

    keep: int
    query: str | None
    is_complete: Callable[[Tokens], bool] = field(default=never)
    certain: bool = False
    reason: str = ""


class Policy(Protocol):
    """Decides when to retrieve."""

    @property
    def name(self) -> str:
        """In results."""

    @property
    def scored(self) -> bool:
        """Whether it needs probabilities and entropies."""

    def first(self, question: str) -> Plan:
        """The plan of the first call."""

    def next(self, written: Written) -> Plan:
        """The plan after a call."""


def spans_of(tokens: Tokens) -> list[Span]:
    """The characters of each token in their text."""
    spans, start = [], 0
    for token in tokens:
        spans.append((start, start + len(token.text)))
        start += len(token.text)
    return spans


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence: its text and its tokens from `first` to before `last`."""

    text: str
    first: int
    last: int


def sentences_of(tokens: Tokens, language: Language) -> list[Sentence]:
    """The sentences of the tokens; a token of two sentences belongs to the first."""
    text, spans = text_of(tokens), spans_of(tokens)
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
    """Whether the first sentence is complete: a second one has begun."""
    if len(tokens) < 2 or not may_end_sentence(text_of(tokens[:-1])):
        return False
    return len(sentences_of(tokens, language)) > 1
