"""Shorten a long prompt to its question and the chunks that are relevant to it.

RAPID's drafter uses the short prompt, the target the long one (arXiv 2502.20330). Input are token
ids, raw or of a chat. The short prompt keeps the chat template, the instruction at the beginning,
the question and everything after it, and the latest messages within a quarter of the budget. The
rest of the budget is filled with the most relevant chunks, in their order. Both prompts end with
the same tokens, so the same output continues both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graft.errors import InputError
from graft.retrieval import question as asking
from graft.retrieval.bm25 import Bm25
from graft.retrieval.budget import capped
from graft.retrieval.chunks import MAX_TOKENS, Chunk, chunks
from graft.retrieval.contents import Span, contents, special_tokens
from graft.retrieval.join import Joints, Layout
from graft.retrieval.retriever import Retriever
from graft.retrieval.select import fill
from graft.retrieval.token_text import TokenText, token_text

FALLBACK_CHUNKS = 4  # if no chunk is relevant
QUESTION_TOKENS, INSTRUCTION_TOKENS = 256, 128
MIN_CHUNK = 16
MAX_SHARE = 0.75  # of the long prompt: a longer short prompt saves too little


@dataclass(frozen=True, slots=True)
class Shortened:
    """The short prompt, the `kept` spans of the long one and the search `query`.

    `matched` is False if no chunk was relevant and the first in rank were taken.
    """

    tokens: list[int]
    kept: tuple[Span, ...]
    query: str
    matched: bool


class Shortener:
    """Shortens prompts of one fast tokenizer; threads may share it."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401
        retriever: Retriever | None = None,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise InputError("a prompt can only be shortened with a fast tokenizer")
        self._tokenizer = tokenizer
        self._retriever = retriever or Bm25()
        self._special = special_tokens(tokenizer)
        self._joints = Joints.of(tokenizer)
        token_text(tokenizer, ())  # fills the cache of token bytes

    def shorten(
        self, tokens: Sequence[int], quotable: Sequence[Span], budget: int | None = None
    ) -> Shortened | None:
        """The short prompt; None if it cannot be made or would save too little.

        `quotable` are the spans of content, the rest is chat template. The query is the prompt's
        own question. `budget` is the length of the result; None: `capped`.
        """
        budget = capped(len(tokens)) if budget is None else budget
        if budget > MAX_SHARE * len(tokens):
            return None
        tokens = list(tokens)
        text = token_text(self._tokenizer, tokens)
        spans = contents(text, tokens, quotable, self._special)
        if not spans:
            return None
        query = asking.query(text, spans, *_limits(budget))
        layout = Layout(tokens, text, spans, self._joints)
        always = list(_always(text, spans, budget))
        tokens_left = budget - len(layout.join(always)[0])
        found, matched = self._found(_chunks(layout, always, tokens_left), query)
        sizes = [len(chunk) for chunk in found]
        taken = [found[i] for i in fill(range(len(found)), sizes.__getitem__, tokens_left)]
        short, kept = _fitting(layout, always, taken, budget)
        if not taken:
            return None
        return Shortened(short, tuple(kept), query, matched)

    def _found(self, rest: list[Chunk], query: str) -> tuple[list[Chunk], bool]:
        """The relevant chunks, best first, each text once; if none is relevant, the first ones."""
        found = self._retriever.relevance(query, [chunk.text for chunk in rest])
        relevant = int(found.relevant.sum())
        best: dict[str, Chunk] = {}
        for number in found.ranking()[: relevant or FALLBACK_CHUNKS]:
            best.setdefault(rest[number].text.strip(), rest[number])
        return list(best.values()), relevant > 0


def _chunks(layout: Layout, always: list[Span], tokens_left: int) -> list[Chunk]:
    """The chunks outside the kept spans, small enough that at least four fit."""
    size = min(MAX_TOKENS, tokens_left // 4)
    if size < MIN_CHUNK:
        return []
    cut = (chunk for span in layout.rest(always) for chunk in chunks(layout.text, *span, size))
    return [chunk for chunk in cut if chunk.text.strip()]


def _limits(budget: int) -> tuple[int, int]:
    """Maximum tokens of the question and of the instruction that are found in the prompt."""
    return min(QUESTION_TOKENS, budget // 4), min(INSTRUCTION_TOKENS, budget // 8)


def _always(text: TokenText, spans: list[Span], budget: int) -> Iterator[Span]:
    """Spans that are kept for every query."""
    max_question, max_instruction = _limits(budget)
    yield asking.tail(text, spans[-1], max_question)[0]
    yield asking.head(text, spans[-1], max_instruction)
    yield asking.head(text, spans[0], max_instruction)
    left = budget // 4
    for start, end in reversed(spans[:-1]):
        left -= end - start
        if left < 0:
            break
        yield start, end


def _fitting(
    layout: Layout, always: list[Span], taken: list[Chunk], budget: int
) -> tuple[list[int], list[Span]]:
    """The short prompt; drops chunks that do not fit together with separators and frames."""
    while True:
        short, kept = layout.join([*always, *((chunk.start, chunk.end) for chunk in taken)])
        if len(short) <= budget or not taken:
            return short, kept
        taken.pop()
