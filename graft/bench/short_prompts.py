"""Prompts shortened by retrieval before they are asked: RAPID's row "RAG", which is no drafting at
all but what a long context is measured against. Retrieval's time counts as reading the prompt."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from graft.errors import InputError

MODULE = "graft.retrieval.shorten"
# (token ids, spans of content) -> what has the short prompt's `tokens`, or None: not worth it
Shorten = Callable[[Sequence[int], Sequence[tuple[int, int]]], Any]


def check_rag() -> None:
    """Refuse early where nothing can shorten prompts."""
    if find_spec(MODULE) is None:
        raise InputError("rag needs retrieval that shortens prompts, which this version has not")


def shortener(tokenizer: Any) -> Shorten:  # noqa: ANN401
    """The one that drafters with a short context use, with its defaults."""
    check_rag()
    return import_module(MODULE).Shortener(tokenizer).shorten


def shortened(shorten: Shorten, tokens: Sequence[int]) -> list[int]:
    """The short prompt; a prompt that is short already stays as it is."""
    found = shorten(tokens, [(0, len(tokens))])
    return list(tokens if found is None else found.tokens)
