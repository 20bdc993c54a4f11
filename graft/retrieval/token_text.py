"""The text of a prompt's token ids, and where in it every token ends.

One pass over the ids gives both, for every tokenizer; encoding the text again would be slower and
could give other ids. For byte-level tokenizers a table of token bytes takes a tenth of the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers.decoders import ByteLevel, DecodeStream

MAX_HELD = 16  # tokens without a whole character, e.g. of a text that is not UTF-8
UNKNOWN = "\ufffd"  # bytes that are not a character
KEPT = 4  # tokenizers with a cached table of token bytes


@dataclass(frozen=True, slots=True)
class TokenText:
    """`text` of tokens: the first `borders[i]` tokens are its first `places[i]` characters. Only
    the last border may be inside a character. Both int [borders], increasing from 0."""

    text: str
    borders: np.ndarray
    places: np.ndarray

    def place(self, tokens: int) -> int:
        """The number of whole characters of the first `tokens` tokens."""
        return int(self.places[np.searchsorted(self.borders, tokens, side="right") - 1])

    def of(self, start: int, end: int) -> str:
        """The text of the tokens from `start` to before `end`."""
        return self.text[self.place(start) : self.place(end)]

    def border(self, place: int) -> int:
        """The last border at or before a character."""
        return int(self.borders[np.searchsorted(self.places, place, side="right") - 1])


def token_text(tokenizer: Any, tokens: Sequence[int]) -> TokenText:  # noqa: ANN401
    """The text of the tokens of a fast tokenizer, special tokens included."""
    known = _token_bytes(tokenizer)
    found = _looked_up(known, tokens) if known else None
    if found:
        return found
    pieces = list(_pieces(tokenizer.backend_tokenizer, tokens))
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    borders = np.append(0, np.flatnonzero(np.diff(ends)) + 1)
    if borders[-1] < len(tokens):  # the last character is incomplete
        borders = np.append(borders, len(tokens))
    return TokenText("".join(pieces), borders, ends[borders])


@lru_cache(KEPT)
def _token_bytes(tokenizer: Any) -> list[bytes] | None:  # noqa: ANN401
    """The bytes of every token; None if the decoder is not byte-level."""
    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.decoder, ByteLevel):
        return None
    letters, vocabulary = _letters(), backend.get_vocab()
    found = [b""] * (1 + max(vocabulary.values(), default=-1))
    for token, number in vocabulary.items():
        known = all(letter in letters for letter in token)
        found[number] = bytes(letters[letter] for letter in token) if known else token.encode()
    return found


def _letters() -> dict[str, int]:
    """The byte of each letter of a byte-level vocabulary: printable bytes are their own letters,
    the others have the letters from 256 on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    named = {chr(256 + place): byte for place, byte in enumerate(others)}
    return named | {chr(byte): byte for byte in printable}


def _looked_up(known: list[bytes], tokens: Sequence[int]) -> TokenText | None:
    """The text by table; None if the bytes are not valid UTF-8 or an id is unknown."""
    try:
        pieces = [known[token] for token in tokens]
        joined = b"".join(pieces)
        text = joined.decode()
    except (IndexError, UnicodeDecodeError):
        return None
    if UNKNOWN in text:
        return None
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    begins = np.append((np.frombuffer(joined, np.uint8) & 0xC0) != 0x80, True)  # of characters
    places = np.append(0, np.cumsum(begins[:-1]))  # characters begun before a byte
    borders = np.append(0, np.flatnonzero(begins[ends[1:]] & (np.diff(ends) > 0)) + 1)
    if borders[-1] < len(tokens):  # the last tokens have no text
        borders = np.append(borders, len(tokens))
    return TokenText(text, borders, places[ends[borders]])


def _pieces(backend: Any, tokens: Sequence[int]) -> Iterator[str]:  # noqa: ANN401
    """The text that each token adds; "" while a character is incomplete."""
    stream, held = _stream(), 0
    for number, token in enumerate(tokens):
        try:
            piece = stream.step(backend, token)
        except Exception:  # its only type: the held bytes are not a character
            stream, held = _stream(), 0
            piece = stream.step(backend, token)
        held = 0 if piece else held + 1
        if held > MAX_HELD:
            unfinished = list(tokens[number + 1 - held : number + 1])
            piece = backend.decode(unfinished, skip_special_tokens=False)
            stream, held = _stream(), 0
        yield piece or ""


def _stream() -> DecodeStream:
    return DecodeStream(skip_special_tokens=False)
