"""A text that a request sends to draft from: a string, or a list of token ids."""

from collections.abc import Callable, Sequence
from typing import Any

MAX_TOKENS = 1 << 18  # of a request's documents and prediction: 0.2 s to index, 30 MB
CHARACTERS = 4  # of a token, before a text is tokenized
MAX_CHARACTERS = CHARACTERS * MAX_TOKENS

Encode = Callable[[str], list[int]]


def encoder(tokenizer: Any) -> Encode | None:  # noqa: ANN401
    """Texts to token ids without special tokens; None without a tokenizer."""
    if tokenizer is None:
        return None

    def encode(text: str) -> list[int]:
        whole = text.encode(errors="replace").decode()  # JSON may have half characters
        return list(tokenizer.encode(whole, add_special_tokens=False))

    return encode


def is_text(value: object) -> bool:
    """Whether it is a string or a list of integers."""
    return isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) <= {int})


def in_vocabulary(tokens: Sequence[int], vocabulary: int) -> bool:
    """Whether all are ids of tokens."""
    return not tokens or (min(tokens) >= 0 and max(tokens) < vocabulary)
