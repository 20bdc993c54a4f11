"""Prompts of a given length: their document is shortened until the prompt fits.

The middle of a document is left out, as in LongBench; the question is never changed.
"""

from typing import Any

import numpy as np

from benchmarks.suites.task import Planted, Prompt
from graft.decode.text import Encoder
from graft.errors import InputError

BETWEEN = "\n\n"  # paragraphs
GAP = f"{BETWEEN}[...]{BETWEEN}"  # where the middle was
Content = str | list[dict[str, str]]


class Cutter:
    """Counts and cuts by one tokenizer; a document that many prompts share is tokenized once."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer, len(tokenizer))
        self._known: dict[str, np.ndarray] = {}

    @property
    def eos(self) -> int | None:
        """The token that ends a text, by the tokenizer alone."""
        return self._tokenizer.eos_token_id

    def tokens(self, content: Content) -> list[int]:
        """Text as it is, chat messages through the template."""
        if not isinstance(content, str) and not self._tokenizer.chat_template:
            raise InputError(
                "the model has no chat template, which this suite needs; take a chat model"
            )
        return self._encoder.prompt(content).tokens

    def text(self, tokens: list[int]) -> str:
        """The text of an output, without special tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def gold(self, text: str) -> list[int]:
        """The tokens of a gold answer."""
        return self._encoder.text(text)

    def bounds(self, prompt: Prompt) -> tuple[int, int]:
        """Its tokens with nothing and with all of its document, give or take one at the seams."""
        shortest = len(self.tokens(with_document(prompt, GAP)))
        if not prompt.document:
            return shortest, shortest
        return shortest, shortest + len(self._spans(prompt.document)) - len(self._spans(GAP))

    def fit(self, prompt: Prompt, max_tokens: int) -> list[int] | None:
        """Its token ids, at most `max_tokens`; None if it cannot be so short."""
        shortest, whole = self.bounds(prompt)
        if whole <= max_tokens:
            tokens = self.tokens(with_document(prompt, prompt.document))
            if len(tokens) <= max_tokens:
                return tokens
        kept = min(max_tokens - shortest, len(self._spans(prompt.document)) - 1)
        while kept > 0:
            tokens = self.tokens(self._shortened(prompt, kept))
            if len(tokens) <= max_tokens:
                return tokens
            kept -= len(tokens) - max_tokens
        return None

    def _shortened(self, prompt: Prompt, kept: int) -> Content:
        """With so many tokens of its document, half of them from each end."""
        document, spans = prompt.document, self._spans(prompt.document)
        first, last = (kept + 1) // 2, kept // 2
        head = document[: spans[first - 1][1]]
        tail = document[spans[-last][0] :] if last else ""
        return with_document(prompt, f"{head.rstrip()}{GAP}{tail.lstrip()}")

    def _spans(self, text: str) -> np.ndarray:
        """[tokens, 2] where in the text each of its tokens begins and ends."""
        if text not in self._known:
            encoded = self._tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            spans = np.array(encoded["offset_mapping"], np.int32)
            self._known[text] = spans.reshape(-1, 2)  # a text may have no tokens
        return self._known[text]


def planted(document: str, plants: tuple[Planted, ...]) -> str:
    """A document with every plant between the two paragraphs nearest to its share."""
    if not plants:
        return document
    parts = document.split(BETWEEN)
    borders = [0]
    for part in parts:
        borders.append(borders[-1] + len(part) + len(BETWEEN))
    for plant in reversed(plants):
        wanted = plant.share * borders[-1]
        place = min(range(len(borders)), key=lambda i: abs(borders[i] - wanted))
        parts.insert(place, plant.text)
    return BETWEEN.join(parts)


def with_document(prompt: Prompt, document: str) -> Content:
    """A prompt's content with another text in its document's place, and what is planted there."""
    if not prompt.document:
        return prompt.content
    document = planted(document, prompt.planted)
    if isinstance(prompt.content, str):
        return prompt.content.replace(prompt.document, document, 1)
    return [
        {**each, "content": each["content"].replace(prompt.document, document, 1)}
        for each in prompt.content
    ]
