"""The texts of a sequence that drafts are copied from, and where in them a copied token stands.

Lookups index documents, prediction, prompt and output in this order, with a border after each, so
no match continues across texts or into the chat template. A place is a position in that order;
tokens from elsewhere have none: -1 in a datastore, -2 in a pool.
"""

from bisect import bisect_right
from dataclasses import dataclass

from graft.draft.drafter import DraftContext
from graft.match.pool import Pools

NOWHERE = -1
SOURCES = ("", "document", "prediction", "prompt", "output", "store", "pool")  # of draft tokens


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copied token stands: in which kind of text (document, prediction, prompt, output),
    in which text of that kind, and at which of its tokens."""

    source: str
    text: int
    token: int


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Neighbouring tokens of a text; `first` is the position of the first of them in it."""

    source: str
    text: int
    first: int
    tokens: list[int]
    bordered: bool = True


def text_spans(context: DraftContext) -> list[TextSpan]:
    """What may be copied, in the order of places; the output, which grows, is last."""
    output = TextSpan("output", 0, 0, context.tokens, bordered=False)
    return [*given_spans(context), output]


def given_spans(context: DraftContext) -> list[TextSpan]:
    """The same without the output."""
    documents = [TextSpan("document", i, 0, each) for i, each in enumerate(context.documents)]
    # A prompt that ends in content is continued by the output: no border there.
    prompt = [
        TextSpan("prompt", 0, first, context.prompt[first:last], last < len(context.prompt))
        for first, last in context.quotable
    ]
    known = [*documents, TextSpan("prediction", 0, 0, context.prediction), *prompt]
    return [each for each in known if each.tokens]


POOL_CONTEXT = 16  # last tokens of the prompt that a pool keeps with the answer and matches


def learn(pools: Pools, context: DraftContext, answer: list[int]) -> None:
    """Add the answer of a finished sequence to its key's pool: after the end of the prompt, so that
    its beginning is found too, or after the whole prompt."""
    if answer:
        prompt = context.prompt if pools.options.prompts else context.prompt[-POOL_CONTEXT:]
        pools.add(context.salt, [*prompt, *answer])


def matched_spans(context: DraftContext) -> list[TextSpan]:
    """The end of the running text, for lookups that match it with other texts."""
    prompt = context.prompt[-POOL_CONTEXT:]
    return [TextSpan("output", 0, 0, [*prompt, *context.tokens], bordered=False)]


class Layout:
    """The places of each span."""

    def __init__(self, spans: list[TextSpan]) -> None:
        self._texts = [(span.source, span.text, span.first) for span in spans]
        self.starts: list[int] = []
        length = 0
        for span in spans:
            self.starts.append(length)
            length += len(span.tokens) + span.bordered

    def origin(self, place: int) -> Origin | None:
        """The origin of the token at a place; None for NOWHERE."""
        if place <= NOWHERE:
            return None
        number = bisect_right(self.starts, place) - 1
        source, text, first = self._texts[number]
        return Origin(source, text, first + place - self.starts[number])
