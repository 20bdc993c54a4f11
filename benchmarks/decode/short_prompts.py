"""Prompts shortened by retrieval before they are asked: RAPID's row "RAG", which is no drafting at
all but what a long context is measured against. Retrieval's time counts as reading the prompt."""

from collections.abc import Sequence
from typing import Any

from graft.draft.short_context.retrieved import Retrieval
from graft.draft.short_context.short_prompt import Shorten
from graft.errors import InputError


def shortener(tokenizer: Any) -> Shorten:  # noqa: ANN401
    """The one that drafters with a short context use, with its defaults."""
    shorten = Retrieval().with_tokenizer(tokenizer)
    if shorten is None:
        raise InputError("rag needs a model with a fast tokenizer: its prompts are taken apart")
    return shorten


def shortened(shorten: Shorten, tokens: Sequence[int]) -> list[int]:
    """The short prompt; a prompt that is short already stays as it is."""
    found = shorten(tokens, [(0, len(tokens))])
    return list(tokens if found is None else found.tokens)
