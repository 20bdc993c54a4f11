"""Join spans of a long prompt to a short one.

A blank line separates spans of a message that were not adjacent. A message without kept spans is
dropped with its frame (the chat template before it) if a later message has the same frame, so that
roles still alternate; else it becomes "[...]".
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graft.retrieval.contents import Span
from graft.retrieval.token_text import TokenText


@dataclass(frozen=True, slots=True)
class Joints:
    """Token ids of the separators between kept spans."""

    paragraph: list[int]
    line: list[int]
    gap: list[int]

    @staticmethod
    def of(tokenizer: Any) -> "Joints":  # noqa: ANN401
        """The separators of a tokenizer."""
        texts = ("\n\n", "\n", "[...]")
        return Joints(*(tokenizer.encode(text, add_special_tokens=False) for text in texts))

    def after(self, text: str) -> list[int]:
        """The tokens that complete a blank line after this text."""
        if text.endswith("\n\n"):
            return []
        return self.line if text.endswith("\n") else self.paragraph


@dataclass(frozen=True, slots=True)
class Layout:
    """A long prompt: tokens, text, and the spans of its contents in order."""

    tokens: list[int]
    text: TokenText
    contents: list[Span]
    joints: Joints

    def rest(self, kept: Iterable[Span]) -> Iterator[Span]:
        """Spans of the contents outside the kept ones."""
        for (start, end), inside in zip(self.contents, self._by_content(kept), strict=True):
            for first, last in inside:
                if start < first:
                    yield start, first
                start = last
            if start < end:
                yield start, end

    def join(self, kept: Iterable[Span]) -> tuple[list[int], list[Span]]:
        """The short prompt of the kept spans with their frames, and its spans of the long one."""
        parts = list(self._parts(self._by_content(kept)))
        tokens: list[int] = []
        for part in parts:
            tokens += self.tokens[slice(*part)] if isinstance(part, tuple) else part
        return tokens, _merged(part for part in parts if isinstance(part, tuple))

    def _parts(self, kept: Sequence[Sequence[Span]]) -> Iterator[Span | list[int]]:
        """Spans of the long prompt and separators, in order."""
        place = number = 0
        while number < len(self.contents):
            start, end = self.contents[number]
            yield place, start
            if not kept[number]:
                successor = self._successor(number, kept)
                if successor != number:
                    number, place = successor, self.contents[successor][0]
                    continue
                yield self.joints.gap
            yield from self._with_joints(kept[number])
            place, number = end, number + 1
        yield place, len(self.tokens)

    def _with_joints(self, spans: Sequence[Span]) -> Iterator[Span | list[int]]:
        for number, (start, end) in enumerate(spans):
            yield start, end
            if number + 1 < len(spans):
                yield self.joints.after(self.text.of(max(start, end - 2), end))

    def _successor(self, number: int, kept: Sequence[Sequence[Span]]) -> int:
        """The last content with the same frame that can replace this one without loss."""
        last = number
        while last + 1 < len(self.contents) and not kept[last]:
            last += 1
        frame = self._frame(number)
        while last > number and self._frame(last) != frame:
            last -= 1
        return last

    def _frame(self, number: int) -> list[int]:
        before = self.contents[number - 1][1] if number else 0
        return self.tokens[before : self.contents[number][0]]

    def _by_content(self, kept: Iterable[Span]) -> list[list[Span]]:
        starts = [start for start, _ in self.contents]
        inside: list[list[Span]] = [[] for _ in self.contents]
        for span in kept:
            inside[bisect_right(starts, span[0]) - 1].append(span)
        return [_merged(spans) for spans in inside]


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Sorted spans; overlapping and adjacent ones merged, empty ones dropped."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
