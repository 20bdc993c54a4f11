"""From records to token ids and loss masks.

A record is a conversation (`messages` or `conversations`, turns with role/content or from/value), a
text, or a whole document. Conversations go through the target's chat template, and only the
assistant's messages and the tokens that end them are in the loss; of texts everything is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard

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
BATCH = 256  # texts per call of the tokenizer
PIECE = 100_000  # characters of a tokenised piece of a text

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids [n] int32 and their loss mask [n] bool."""

    tokens: np.ndarray
    loss_mask: np.ndarray


@dataclass(frozen=True, slots=True)
class _Text:
    """A text and the spans of its characters in the loss, in order."""

    text: str
    spans: list[tuple[int, int]]
    special: bool  # whether the tokenizer adds its special tokens


class Reader:
    """Reads examples; counts unusable conversations, and texts that overlap excluded ones."""

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
        texts = (each for record in read_records(paths) for each in self._texts(record))
        allowed = (each for each in texts if not self._overlaps(each.text))
        while some := list(islice(allowed, BATCH)):
            yield from self._encode(some)

    def conversations(self, paths: Iterable[str]) -> Iterator[Messages]:
        """The conversations in the files."""
        for record in read_records(paths):
            value = None if record.document else self._value(record)
            if is_conversation(value) and (messages := messages_of(value)):
                yield messages

    def _overlaps(self, text: str) -> bool:
        found = self._overlap is not None and self._overlap.has(text)
        self.overlapping += found
        return found

    def _texts(self, record: Record) -> Iterator[_Text]:
        value = record.content if record.document else self._value(record)
        if isinstance(value, str):
            yield from _pieces(value)
        elif is_conversation(value):
            messages = messages_of(value)
            text = self._chat_text(messages) if messages else None
            self.unusable += text is None
            if text:
                yield text
        else:
            raise InputError(f"{record.where} has neither a text nor a conversation; use --field")

    def _value(self, record: Record) -> Any:  # noqa: ANN401 (any JSON)
        if self._field:
            return field_of(record, self._field)
        if isinstance(record.content, dict):
            for name in (*CONVERSATIONS, *TEXTS):
                if name in record.content:
                    return record.content[name]
        return field_of(record, CONVERSATIONS[0])

    def _chat_text(self, messages: Messages) -> _Text | None:
        """The conversation by the chat template; None if the template changes its messages."""
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception as error:  # templates may raise anything
            if type(error).__name__ != "TemplateError":
                raise InputError(f"the chat template fails: {str(error)[:200]}") from error
            return None
        spans, place = [], 0
        for message in messages:
            content = message["content"].strip()
            first = text.find(content, place)
            if first < 0:
                return None
            place = first + len(content)
            if self._all or message["role"] == "assistant":
                spans.append((first, place))
        if not spans:
            return None
        return _Text(text, [(0, len(text))] if self._all else spans, special=False)

    def _encode(self, some: list[_Text]) -> Iterator[Example]:
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
                    yield Example(tokens, _mask(encoding.offsets, each.spans))


def is_conversation(value: Any) -> TypeGuard[list[dict[str, Any]]]:  # noqa: ANN401 (any JSON)
    """Whether this is a list of turns."""
    return isinstance(value, list) and all(isinstance(turn, dict) for turn in value)


def messages_of(turns: list[dict[str, Any]]) -> Messages | None:
    """Turns as role and content, from the first user message on; None if they are unusable."""
    messages: Messages = []
    for turn in turns:
        role = ROLES.get(str(turn.get("role", turn.get("from"))).lower())
        content = turn.get("content", turn.get("value"))
        if role is None or not isinstance(content, str):
            return None
        if content.strip() and (role != "assistant" or messages):
            messages.append({"role": role, "content": content})
    return messages if any(message["role"] == "user" for message in messages) else None


def _pieces(text: str) -> Iterator[_Text]:
    """A text in pieces that end at line ends, to be tokenised in parallel."""
    first = 0
    while first < len(text):
        last = first + PIECE
        if last < len(text):
            last = text.rfind("\n", first + 1, last) + 1 or last
        piece = text[first:last]
        if piece.strip():
            yield _Text(piece, [(0, len(piece))], special=True)
        first = last


def _mask(offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> np.ndarray:
    """The tokens that start in a span, and the first token after each span."""
    starts = np.array([first for first, _ in offsets])
    mask = np.zeros(len(starts), bool)
    for first, last in spans:
        low, high = np.searchsorted(starts, [first, last])
        mask[low : high + 1] = True
    return mask
