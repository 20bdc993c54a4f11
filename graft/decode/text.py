"""Tokenization of prompts, and incremental detokenization of answers."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import TemplateError
from tokenizers.decoders import DecodeStream

from graft.errors import InputError

# Errors that a chat template may raise for messages or options it does not support
TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
Message = dict[str, Any]  # role, content, and other fields of the model's chat template
Spans = dict[int, tuple[int, int]]  # characters of a text by message number


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids, and the spans of them that drafts may copy: content, not chat template."""

    tokens: list[int]
    quotable: list[tuple[int, int]]


Prompt = str | Sequence[int] | Sequence[Message] | EncodedPrompt


class Encoder:
    """Encodes prompts; without a tokenizer (None) it accepts only token ids.

    One thread at a time uses the tokenizer, which keeps settings between calls.
    """

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:  # noqa: ANN401
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._lock = threading.Lock()

    def prompt(self, prompt: Prompt) -> EncodedPrompt:
        """Encode text, token ids, or chat messages (by the model's chat template)."""
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if isinstance(prompt, str):
            if not prompt.strip():
                raise InputError("the prompt is empty; write a question")
            tokens = list(self._encoded(prompt).input_ids)
            return EncodedPrompt(tokens, [(0, len(tokens))])
        items = list(prompt)
        if not items:
            raise InputError("the prompt is empty; write a question")
        if all(isinstance(item, dict) for item in items):
            return self.chat(cast(list[Message], items))
        return self._ids(items)

    def chat(self, messages: list[Message], **options: Any) -> EncodedPrompt:  # noqa: ANN401
        """Encode chat messages; `options`, such as tools, go to the model's chat template."""
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(
                message.get("content"), str
            ):
                raise InputError("a message needs a role and a content, both text")
        if not messages[-1]["content"].strip() and "tool_calls" not in messages[-1]:
            raise InputError("the prompt is empty; write a question")
        encoded, spans = self._chat(messages, options)
        return EncodedPrompt(
            list(encoded.input_ids), _token_spans(encoded["offset_mapping"], [*spans.values()])
        )

    def chat_characters(
        self,
        messages: list[Message],
        **options: Any,  # noqa: ANN401
    ) -> list[tuple[int, int, int] | None]:
        """For each token of a chat its message's number and its first and end character there;
        None for the template's tokens."""
        encoded, spans = self._chat(messages, options)
        places: list[tuple[int, int, int] | None] = [None] * len(encoded.input_ids)
        offsets = encoded["offset_mapping"]
        for number, span in spans.items():
            content = messages[number]["content"]
            shift = len(content) - len(content.lstrip()) - span[0]
            for first, last in _token_spans(offsets, [span]):
                for token in range(first, last):
                    start, end = offsets[token]
                    places[token] = (number, start + shift, end + shift)
        return places

    def characters(self, text: str, *, special: bool = False) -> list[tuple[int, int]]:
        """First and end character of each token; `special` adds special tokens as prompts have."""
        encoded = self._encoded(text, add_special_tokens=special, return_offsets_mapping=True)
        return list(encoded["offset_mapping"])

    def _chat(self, messages: list[Message], options: dict[str, Any]) -> tuple[Any, Spans]:
        """An encoded chat with its offsets, and the messages' spans in the rendered text."""
        text = self.render(messages, **options)
        encoded = self._encoded(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded, _content_spans(text, self.render(_marked(messages), **options), messages)

    def text(self, text: str | Sequence[int]) -> list[int]:
        """Token ids of a text to draft from; token ids are returned as they are."""
        if not isinstance(text, str):
            return self._ids(list(text)).tokens
        return list(self._encoded(text, add_special_tokens=False).input_ids)

    def _encoded(self, text: str, **options: bool) -> Any:  # noqa: ANN401
        tokenizer = self._required_tokenizer()
        with self._lock:
            return tokenizer(text, verbose=False, **options)

    def _required_tokenizer(self) -> Any:  # noqa: ANN401
        if self._tokenizer is None:
            raise InputError("this model came without a tokenizer; pass token ids instead of text")
        return self._tokenizer

    def _ids(self, items: list[Any]) -> EncodedPrompt:
        try:
            tokens = [int(item) for item in items]
        except (TypeError, ValueError) as error:
            raise InputError("a prompt is text, token ids or a list of messages") from error
        wrong = [token for token in tokens if not 0 <= token < self._vocabulary]
        if wrong:
            raise InputError(f"token {wrong[0]} is not among the model's {self._vocabulary}")
        return EncodedPrompt(tokens, [(0, len(tokens))])

    def render(self, messages: list[Message], **options: Any) -> str:  # noqa: ANN401
        """The chat as text, by the model's chat template, with the generation prompt."""
        if not self._required_tokenizer().chat_template:
            raise InputError("this model has no chat template; pass the prompt as plain text")
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
        except TEMPLATE_ERRORS as error:  # e.g. two users in a row
            line = " ".join(str(error).split())
            raise InputError(f"the model's chat template refuses this: {line}") from error


def _mark(number: int) -> str:
    return f"\ue000{number}\ue001"  # private use characters: in no template


def _marked(messages: list[Message]) -> list[Message]:
    """The chat with a mark in place of every message's content."""
    return [{**message, "content": _mark(i)} for i, message in enumerate(messages)]


def _content_spans(text: str, marked: str, messages: list[Message]) -> Spans:
    """The span of each message's content in the rendered chat; templates may strip it.

    `marked` is the chat rendered with marks: text before a mark is the template's.
    """
    spans, place = {}, 0
    for i, message in enumerate(messages):
        own, mark, after = marked.partition(_mark(i))
        if not mark:
            continue  # the template leaves this message out
        marked, stripped = after, message["content"].strip()
        place = max(place, text.find(own, place) + len(own))
        found = text.find(stripped, place) if stripped else -1
        if found >= 0:
            place = found + len(stripped)
            spans[i] = (found, place)
    return spans


def _token_spans(
    offsets: list[tuple[int, int]], spans: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Token ranges that lie entirely inside the character spans."""
    result = []
    for first, last in spans:
        inside = [i for i, (a, b) in enumerate(offsets) if first <= a and b <= last and a < b]
        if inside:
            result.append((inside[0], inside[-1] + 1))
    return result


class Detokenizer:
    """Decodes a growing output: complete characters only, cut before a stop string.

    Without a tokenizer (None) all text is empty.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:  # noqa: ANN401
        if tokenizer is None and stop:
            raise InputError("stop strings need a tokenizer, and this model came without one")
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._count = 0  # tokens decoded so far
        self._unshown: list[int] = []  # the last of them, which have no text yet
        self._text = ""  # their text
        self._shown = 0  # characters of it returned so far
        self.stopped = False

    def push(self, token: int) -> str:
        """The new text after one more token; sets `stopped` at a stop string."""
        if self._tokenizer is None:
            return ""
        self._decode([token])
        return self._release(len(self._text) - self._held())

    def finish(self, tokens: list[int]) -> str:
        """The remaining text at the end of the output, incomplete characters included.

        `tokens` are the whole output; those not pushed yet are decoded now.
        """
        if self._tokenizer is not None and not self.stopped:
            self._decode(tokens[self._count :])
            whole = self._tokenizer.decode(tokens, skip_special_tokens=True)
            if not whole.startswith(self._text):  # bytes at the end change text already returned
                rest = self._tokenizer.decode(self._unshown, skip_special_tokens=True)
                whole = self._text + rest
            self._unshown.clear()
            self._text = whole
            self._held()
        return self._release(len(self._text))

    @property
    def text(self) -> str:
        """All decoded text, cut before a stop string."""
        return self._text

    def _decode(self, tokens: list[int]) -> None:
        self._text += "".join([self._step(token) for token in tokens])
        self._count += len(tokens)

    def _step(self, token: int) -> str:
        """The text that one more token adds.

        A byte that fits no character changes earlier text, which DecodeStream reports as an error:
        a new stream continues with the tokens that have no text yet.
        """
        self._unshown.append(token)
        backend = self._tokenizer.backend_tokenizer
        try:
            text = self._stream.step(backend, token) or ""
        except Exception:  # DecodeStream raises no narrower class
            self._stream = DecodeStream(skip_special_tokens=True)
            text = "".join([self._stream.step(backend, each) or "" for each in self._unshown])
        if text:
            self._unshown.clear()
        return text

    def _held(self) -> int:
        """Characters at the end that may begin a stop string; cuts the text at a complete one."""
        if not self._stop:
            return 0
        places = [self._text.find(stop, max(0, self._shown)) for stop in self._stop]
        found = [place for place in places if place >= 0]
        if found:
            self._text, self.stopped = self._text[: min(found)], True
            return 0
        return max((overlap(self._text, stop) for stop in self._stop), default=0)

    def _release(self, upto: int) -> str:
        piece = self._text[self._shown : upto]
        self._shown = max(self._shown, upto)
        return piece


def overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `mark`."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)
