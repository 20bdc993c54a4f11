"""A long prompt made short: what it asks, and of the rest what helps to answer that.

RAPID's drafter reads such a prompt while the target reads all of it (arXiv 2502.20330). It is made
from token ids alone, raw or of a chat. These stay: the chat template around everything that stays,
the instruction at the beginning, the question and whatever follows it, the latest messages as far
as they take a quarter of the budget. Of everything else the chunks nearest to the question come
in, in their order, as many as the budget lets. The end is the long prompt's own, token by token:
whatever is written next continues both.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graft.errors import InputError
from graft.retrieval import question as asking
from graft.retrieval.bm25 import Bm25
from graft.retrieval.budget import capped
from graft.retrieval.chunks import MOST_TOKENS, Chunk, chunks
from graft.retrieval.contents import Span, contents, special_tokens
from graft.retrieval.join import Joints, Layout
from graft.retrieval.retriever import Retriever
from graft.retrieval.select import fill
from graft.retrieval.token_text import TokenText, token_text

FEW = 4  # chunks that are taken where none is near
QUESTION_TOKENS, INSTRUCTION_TOKENS = 256, 128
LEAST_CHUNK = 16
WORTH_IT = 0.75  # of the long prompt: a longer one saves too little


@dataclass(frozen=True, slots=True)
class Shortened:
    """The short prompt; which `kept` spans of the long one are in it, in order; the `query` that
    was searched with. `matched` is False where no chunk was near enough, so that the first in rank
    were taken. `seconds` it took."""

    tokens: list[int]
    kept: tuple[Span, ...]
    query: str
    matched: bool
    seconds: float


class Shortener:
    """Shortens prompts of one tokenizer (a fast one of transformers); threads may share it."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401
        retriever: Retriever | None = None,
        budget: Callable[[int], int] = capped,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise InputError("a prompt can only be shortened with a fast tokenizer")
        self._tokenizer, self._budget = tokenizer, budget
        self._retriever = retriever or Bm25()
        self._special = special_tokens(tokenizer)
        self._joints = Joints.of(tokenizer)
        token_text(tokenizer, ())  # what tokens stand for is found out before a prompt waits for it

    def shorten(
        self,
        tokens: Sequence[int],
        quotable: Sequence[Span],
        question: Sequence[int] | None = None,
    ) -> Shortened | None:
        """The prompt within its budget; None where that is not possible or not worth it.

        `quotable` are the spans of content, the rest is chat template. Without a question the
        prompt's own is searched with.
        """
        begun, budget = time.perf_counter(), self._budget(len(tokens))
        if budget > WORTH_IT * len(tokens):
            return None
        tokens = list(tokens)
        text = token_text(self._tokenizer, tokens)
        spans = contents(text, tokens, quotable, self._special)
        if not spans:
            return None
        asked = self._tokenizer.decode(list(question or ())).strip()
        query = asked or asking.query(text, spans, *_limits(budget))
        layout = Layout(tokens, text, spans, self._joints)
        always = list(_always(text, spans, budget, asked))
        room = budget - len(layout.join(always)[0])
        found, matched = self._found(_chunks(layout, always, room), query)
        taken = [found[number] for number in fill(range(len(found)), _sizes(found), room)]
        short, kept = _fitting(layout, always, taken, budget)
        if not taken:
            return None
        return Shortened(short, tuple(kept), query, matched, time.perf_counter() - begun)

    def _found(self, rest: list[Chunk], query: str) -> tuple[list[Chunk], bool]:
        """The chunks that are near, best first, each text once; if none is, the first in rank."""
        nearness = self._retriever.nearness(query, [chunk.text for chunk in rest])
        near = int(nearness.near.sum())
        best: dict[str, Chunk] = {}
        for number in nearness.ranking()[: near or FEW]:
            best.setdefault(rest[number].text.strip(), rest[number])
        return list(best.values()), near > 0


def _chunks(layout: Layout, always: list[Span], room: int) -> list[Chunk]:
    """What is there to choose from: chunks of which some find room."""
    most = min(MOST_TOKENS, room // 4)
    if most < LEAST_CHUNK:
        return []
    cut = (chunk for span in layout.rest(always) for chunk in chunks(layout.text, *span, most))
    return [chunk for chunk in cut if chunk.text.strip()]


def _sizes(found: list[Chunk]) -> Callable[[int], int]:
    return lambda number: len(found[number])


def _limits(budget: int) -> tuple[int, int]:
    """Most tokens of a question and of an instruction that are found rather than given."""
    return min(QUESTION_TOKENS, budget // 4), min(INSTRUCTION_TOKENS, budget // 8)


def _always(text: TokenText, spans: list[Span], budget: int, asked: str) -> Iterator[Span]:
    """What of the contents stays whatever is asked."""
    question_most, instruction_most = _limits(budget)
    yield asking.tail(text, spans[-1], question_most)[0]
    yield asking.head(text, spans[-1], instruction_most)
    yield asking.head(text, spans[0], instruction_most)
    left = budget // 4
    for start, end in reversed(spans[:-1]):
        left -= end - start
        if left < 0:
            break
        yield start, end
    for start, end in reversed(spans if asked else []):
        place = text.of(start, end).rfind(asked)
        if place >= 0:
            place += text.place(start)
            last = text.border_after(place + len(asked))
            yield max(start, text.border(place)), min(end, last)
            break


def _fitting(
    layout: Layout, always: list[Span], taken: list[Chunk], budget: int
) -> tuple[list[int], list[Span]]:
    """The short prompt; chunks that joints and frames left no room for are dropped."""
    while True:
        short, kept = layout.join([*always, *((chunk.start, chunk.end) for chunk in taken)])
        if len(short) <= budget or not taken:
            return short, kept
        taken.pop()
