"""The texts of a sequence that drafts are copied from, and where in them a copied token stands.

Lookups index documents, prediction, prompt and output in this order, with a border after each, so
nothing is ever continued across texts or out of the chat template. A place is a number in that
order; what stands in none of these texts, such as a datastore's, has place -1.
"""

from bisect import bisect_right
from dataclasses import dataclass

from graft.draft.drafter import DraftContext

NOWHERE = -1
SOURCES = ("", "document", "prediction", "prompt", "output", "store")  # what nodes are copied from


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copied token stands: in which kind of text (document, prediction, prompt, output),
    in which of that kind, and its number among that text's tokens."""

    source: str
    text: int
    token: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring tokens of a text; `first` is the number of the first of them there."""

    source: str
    text: int
    first: int
    tokens: list[int]
    bordered: bool = True


def stretches(context: DraftContext) -> list[Stretch]:
    """What may be copied, in the order of places; the output, which grows, comes last."""
    documents = [Stretch("document", i, 0, each) for i, each in enumerate(context.documents)]
    # A prompt that ends in content is what the output continues: no border there.
    prompt = [
        Stretch("prompt", 0, first, context.prompt[first:last], last < len(context.prompt))
        for first, last in context.quotable
    ]
    known = [*documents, Stretch("prediction", 0, 0, context.prediction), *prompt]
    output = Stretch("output", 0, 0, context.tokens, bordered=False)
    return [*(each for each in known if each.tokens), output]


class Layout:
    """Which stretch has which places."""

    def __init__(self, parts: list[Stretch]) -> None:
        self._texts = [(part.source, part.text, part.first) for part in parts]
        self.starts: list[int] = []
        length = 0
        for part in parts:
            self.starts.append(length)
            length += len(part.tokens) + part.bordered

    def number(self, place: int) -> int:
        """Of the stretch with this place."""
        return bisect_right(self.starts, place) - 1

    def origin(self, place: int) -> Origin | None:
        """What stands at a place; None for what stands elsewhere."""
        if place <= NOWHERE:
            return None
        number = self.number(place)
        source, text, first = self._texts[number]
        return Origin(source, text, first + place - self.starts[number])
