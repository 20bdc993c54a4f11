"""From records to token ids, and which of them are learned.

A record is a conversation (`messages` or `conversations`, turns with role/content or from/value), a
text, or a whole document. Conversations are written by the target's chat template and only what
the assistant says is learned, with the token that ends its turn; of texts everything is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from graft.documents.overlap import Overlap
from graft.documents.records import Record, field_of, read_records
from graft.errors import InputError

CONVERSATIONS = ("messages", "conversations", "conversation")
TEXTS = ("text", "content")
ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant",
    "system": "system",
}  # fmt: skip
TOGETHER = 256  # texts tokenised at once
PIECE = 100_000  # characters of a text tokenised in one go

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids [n] int32 and which of them are learned [n] bool."""

    tokens: np.ndarray
    learned: np.ndarray


@dataclass(frozen=True, slots=True)
class _Written:
    """A text and the characters of it that are learned, as stretches in order."""

    text: str
    learned: list[tuple[int, int]]
    special: bool  # whether the tokenizer adds its special tokens


class Reader:
    """Reads examples with a tokenizer; counts the conversations it could not use, and the texts
    that overlap with what must not be learned."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 (a transformers fast tokenizer)
        *,
        field: str = "",
        all_tokens: bool = False,
        overlap: Overlap | None = None,
    ) -> None:
        self._tokenizer, self._field, self._all = tokenizer, field, all_tokens
        self._overlap = overlap
        self.unusable = self.overlapping = 0

    def read(self, paths: Iterable[str]) -> Iterator[Example]:
        """All examples of the files, in their order."""
        written = (each for record in read_records(paths) for each in self._write(record))
        allowed = (each for each in written if not self._overlaps(each.text))
        while some := list(islice(allowed, TOGETHER)):
            yield from self._encode(some)

    def conversations(self, paths: Iterable[str]) -> Iterator[Messages]:
        """Those of the files, without their texts."""
        for record in read_records(paths):
            value = None if record.document else self._value(record)
            if is_conversation(value) and (messages := messages_of(value)):
                yield messages

    def _overlaps(self, text: str) -> bool:
        found = self._overlap is not None and self._overlap.has(text)
        self.overlapping += found
        return found

    def _write(self, record: Record) -> Iterator[_Written]:
        value = record.content if record.document else self._value(record)
        if isinstance(value, str):
            yield from _pieces(value)
        elif is_conversation(value):
            messages = messages_of(value)
            written = self._converse(messages) if messages else None
            self.unusable += written is None
            if written:
                yield written
        else:
            raise InputError(
                f"{record.where} holds neither a text nor a conversation; --field names one"
            )

    def _value(self, record: Record) -> Any:  # noqa: ANN401 (any JSON)
        if self._field:
            return field_of(record, self._field)
        if isinstance(record.content, dict):
            for name in (*CONVERSATIONS, *TEXTS):
                if name in record.content:
                    return record.content[name]
        return field_of(record, CONVERSATIONS[0])

    def _converse(self, messages: Messages) -> _Written | None:
        """The conversation as the template writes it; None where it changes what was said."""
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception as error:  # the template is a program of the model's authors
            if type(error).__name__ != "TemplateError":
                raise InputError(f"the chat template fails: {str(error)[:200]}") from error
            return None
        learned, place = [], 0
        for message in messages:
            content = message["content"].strip()
            first = text.find(content, place)
            if first < 0:
                return None
            place = first + len(content)
            if self._all or message["role"] == "assistant":
                learned.append((first, place))
        if not learned:
            return None
        return _Written(text, [(0, len(text))] if self._all else learned, special=False)

    def _encode(self, some: list[_Written]) -> Iterator[Example]:
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        for special in (False, True):
            mine = [each for each in some if each.special == special]
            texts = [each.text for each in mine]
            encodings = backend.encode_batch(texts, add_special_tokens=special)
            for each, encoding in zip(mine, encodings, strict=True):
                tokens = np.array(encoding.ids, np.int32)
                if len(tokens):
                    yield Example(tokens, _marked(encoding.offsets, each.learned))


def is_conversation(value: Any) -> bool:  # noqa: ANN401 (any JSON)
    """Whether this is a list of turns."""
    return isinstance(value, list) and all(isinstance(turn, dict) for turn in value)


def messages_of(turns: list[dict[str, Any]]) -> Messages | None:
    """StepLock as role and content, from the first question on; None where they cannot be used."""
    messages: Messages = []
    for turn in turns:
        role = ROLES.get(str(turn.get("role", turn.get("from"))).lower())
        content = turn.get("content", turn.get("value"))
        if role is None or not isinstance(content, str):
            return None
        if content.strip() and (role != "assistant" or messages):
            messages.append({"role": role, "content": content})
    return messages if any(message["role"] == "user" for message in messages) else None


def _pieces(text: str) -> Iterator[_Written]:
    """A text in pieces that are tokenised in parallel, cut at the ends of lines."""
    first = 0
    while first < len(text):
        last = first + PIECE
        if last < len(text):
            last = text.rfind("\n", first + 1, last) + 1 or last
        piece = text[first:last]
        if piece.strip():
            yield _Written(piece, [(0, len(piece))], special=True)
        first = last


def _marked(offsets: list[tuple[int, int]], learned: list[tuple[int, int]]) -> np.ndarray:
    """Which tokens begin in a learned stretch, and the first token after each of them."""
    starts = np.array([first for first, _ in offsets])
    marks = np.zeros(len(starts), bool)
    for first, last in learned:
        low, high = np.searchsorted(starts, [first, last])
        marks[low : high + 1] = True
    return marks
