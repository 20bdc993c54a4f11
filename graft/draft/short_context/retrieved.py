"""Short prompts built from retrieved passages, for drafters with a short context."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.draft.short_context.short_prompt import Shorten
from graft.retrieval.budget import BUDGETS, check_budget

if TYPE_CHECKING:
    from graft.retrieval.retriever import Retriever
    from graft.retrieval.shorten import Shortener

DEFAULT_RETRIEVER, DEFAULT_BUDGET = "bm25", "capped"
MAX_KEPT = 64  # short prompts


class Retrieval:
    """The retriever of passages (bm25, static, dense, hybrid) and their token budget.

    The retriever is loaded at first use: it may need optional packages.
    """

    def __init__(self, name: str = DEFAULT_RETRIEVER, budget: int | str = DEFAULT_BUDGET) -> None:
        check_budget(budget)
        self._name, self._budget = name, budget

    def check(self, *, needed: bool) -> None:
        """Raise InputError now if the retriever cannot be loaded."""
        if needed or self._name != DEFAULT_RETRIEVER:
            assert self.retriever

    @cached_property
    def retriever(self) -> "Retriever":
        """Finds passages."""
        from graft.retrieval.named import retriever

        return retriever(self._name)

    def budget(self, length: int, own: int | str | None = None) -> int:
        """Tokens of the short version of a prompt of this length; `own` is the request's budget."""
        budget = self._budget if own is None else own
        return BUDGETS[budget](length) if isinstance(budget, str) else budget

    def with_tokenizer(self, tokenizer: Any) -> Shorten | None:  # noqa: ANN401
        """Shortens a model's prompts; None for a tokenizer without offsets."""
        return _Shortening(self, tokenizer) if getattr(tokenizer, "is_fast", False) else None


class _Shortening:
    """See Shorten. Keeps the latest results, because prompts repeat."""

    def __init__(self, retrieval: Retrieval, tokenizer: Any) -> None:  # noqa: ANN401
        self._retrieval, self._tokenizer = retrieval, tokenizer
        self._kept: OrderedDict[bytes, list[int] | None] = OrderedDict()

    def __call__(
        self,
        tokens: Sequence[int],
        quotable: Sequence[tuple[int, int]],
        own: int | str | None = None,
    ) -> list[int] | None:
        budget = min(self._retrieval.budget(len(tokens), own), len(tokens))
        key = _key([budget, *tokens], quotable)
        try:
            short = self._kept.pop(key)  # drafters of other presets may run at the same time
        except KeyError:
            shortened = self._shortener.shorten(tokens, quotable, budget)
            short = shortened.tokens if shortened else None
        self._kept[key] = short
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return short

    @cached_property
    def _shortener(self) -> "Shortener":
        from graft.retrieval.shorten import Shortener

        return Shortener(self._tokenizer, self._retrieval.retriever)


def _key(tokens: Sequence[int], quotable: Sequence[tuple[int, int]]) -> bytes:
    """A hash of the prompt, which may be long."""
    spans = [place for span in quotable for place in span]
    numbers = np.array([len(tokens), *tokens, *spans], np.int64)
    return blake2b(numbers.tobytes(), digest_size=16).digest()
