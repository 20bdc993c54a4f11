"""A sequence's rows in the draft model's KV cache: committed tokens, then draft tokens.

Rows of accepted draft tokens are reused; those of rejected ones are dropped before the next draft.
"""

from dataclasses import dataclass, field

from graft.draft.drafter import DraftContext
from graft.models.arena import ROWS_AHEAD, Extent, OutOfRowsError
from graft.models.language_model import LanguageModel


@dataclass(slots=True)
class DraftCache:
    """The rows of one sequence; `extent` is None while none are allocated."""

    model: LanguageModel
    context: DraftContext
    extent: Extent | None = None
    cached: int = 0  # committed tokens in the rows
    shared: bool = False  # whether the prefix cache offers the prompt's rows to other requests
    drafted: list[int] = field(default_factory=list)  # draft tokens in the rows behind them

    @property
    def held_extent(self) -> Extent:
        """The rows, while some are allocated."""
        assert self.extent is not None
        return self.extent

    @property
    def length(self) -> int:
        """Committed tokens: prompt and output."""
        return len(self.context.prompt) + len(self.context.tokens)

    @property
    def visible(self) -> int:
        """Tokens that the next draft token attends to."""
        return self.length

    @property
    def uncached(self) -> int:
        """Committed tokens that the draft model has not processed yet."""
        return self.length - self.cached

    @property
    def prefilling(self) -> bool:
        """Whether some of these are prompt tokens."""
        return self.cached < len(self.context.prompt)

    def prepare(self, depth: int, scratch: int) -> bool:
        """Drop rejected draft tokens; whether all committed tokens and `depth` draft tokens fit,
        with `scratch` rows for the latter."""
        if self.length + depth > self.model.context_length:
            self.close()
            return False
        try:
            extent = self.extent or self._open()
            self._share_prompt(extent)
            self._drop_rejected(extent)
            self.model.prefixes.ensure(extent, extent.length + self.uncached + scratch)
        except OutOfRowsError:
            return False
        return True

    def next_chunk(self, max_tokens: int) -> list[int]:
        """The first uncached tokens; ids outside the draft model's vocabulary become its last."""
        prompt, tokens = self.context.prompt, self.context.tokens
        chunk = prompt[self.cached : self.cached + max_tokens]
        start = max(0, self.cached - len(prompt))
        chunk += tokens[start : start + max_tokens - len(chunk)]
        return [min(token, self.model.vocabulary - 1) for token in chunk]

    @property
    def sees_all(self) -> bool:
        """Whether a draft token attends to as much as the target's tokens do; see ViewCache."""
        return False

    def follow(self, target: Extent | None) -> None:
        """Called after each step with the target's own rows; see ViewCache."""

    def close(self) -> None:
        """Free the rows."""
        if self.extent is None:
            return
        self.model.arena.truncate(self.extent, self.cached - self.extent.shared)
        text = [*self.context.prompt, *self.context.tokens]
        self.model.prefixes.leave(text[: self.cached], self.extent, salt=self.context.salt)
        self.extent, self.cached, self.drafted, self.shared = None, 0, [], False

    def _open(self) -> Extent:
        prompt, salt = self.context.prompt, self.context.salt
        self.extent = self.model.prefixes.open(prompt, ROWS_AHEAD, salt=salt)
        self.cached = self.extent.total
        return self.extent

    def _share_prompt(self, extent: Extent) -> None:
        """Only after prefill: a drafter may never finish it, and other requests would wait."""
        if not self.shared and not self.prefilling:
            prompt, salt = self.context.prompt, self.context.salt
            self.model.prefixes.enter(prompt, extent, salt=salt)
            self.shared = True

    def _drop_rejected(self, extent: Extent) -> None:
        """The last committed token is never kept: its logits start the next draft."""
        new = self.context.tokens[max(0, self.cached - len(self.context.prompt)) : -1]
        for token, drafted in zip(new, self.drafted, strict=False):
            if token != drafted:
                break
            self.cached += 1
        self.drafted = []
        self.model.arena.truncate(extent, self.cached - extent.shared)
