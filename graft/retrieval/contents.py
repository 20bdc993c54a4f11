"""Find the contents of a prompt, which may be dropped, as opposed to its chat template.

`quotable` has the spans of the messages if they are known. In a prompt of token ids, special tokens
and the role after each belong to the template.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from graft.retrieval.token_text import TokenText

Span = tuple[int, int]  # tokens from the first to before the second
ROLE = re.compile(r"\s*(?:\w+\s*\Z|\w+\n+)?")
ROLE_TOKENS = 8


def contents(
    text: TokenText, tokens: Sequence[int], quotable: Sequence[Span], special: frozenset[int]
) -> list[Span]:
    """Spans of content in order, without blank ones and special tokens."""
    found, place = [], 0
    for start, end in sorted(quotable):
        start, end = max(start, place), min(end, len(tokens))
        marks = [number for number in range(start, end) if tokens[number] in special]
        for left, right in pairwise([start - 1, *marks, end]):
            first = left + 1 if left < start else _after_role(text, left + 1, right)
            if text.of(first, right).strip():
                found.append((first, right))
        place = max(place, end)
    return found


def special_tokens(tokenizer: Any) -> frozenset[int]:  # noqa: ANN401
    """Ids of the special tokens."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return frozenset(number for number, token in added.items() if token.special)


def _after_role(text: TokenText, start: int, end: int) -> int:
    role = ROLE.match(text.of(start, min(end, start + ROLE_TOKENS)))
    return max(start, text.border(text.place(start) + (role.end() if role else 0)))
