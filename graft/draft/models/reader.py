"""What a draft model has read of a sequence: sure tokens, then guesses of its own.

Guesses that came true need not be read again; the others are dropped when the next round begins.
"""

from dataclasses import dataclass, field

from graft.draft.drafter import DraftContext
from graft.models.arena import ROWS_AHEAD, Extent, OutOfRowsError
from graft.models.language_model import LanguageModel


@dataclass(slots=True)
class Reader:
    """A sequence's rows in the draft model's cache; none where it is full."""

    model: LanguageModel
    context: DraftContext
    extent: Extent | None = None
    sure: int = 0  # tokens of the text in the rows
    entered: bool = False  # others may build on the prompt's rows
    guessed: list[int] = field(default_factory=list)  # read behind them

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.context.prompt) + len(self.context.tokens)

    @property
    def seen(self) -> int:
        """Tokens that the next guess will be made from."""
        return self.length

    @property
    def missing(self) -> int:
        """Tokens of the text that are not read yet."""
        return self.length - self.sure

    @property
    def in_prompt(self) -> bool:
        """Whether a part of the prompt is among them."""
        return self.sure < len(self.context.prompt)

    def prepare(self, depth: int, scratch: int) -> bool:
        """Drop what did not come true; whether the text and `depth` more tokens fit, with
        `scratch` rows for them."""
        if self.length + depth > self.model.context_length:
            self.close()
            return False
        try:
            if self.extent is None:
                self._open()
            self._enter()
            self._drop_wrong_guesses()
            rows = self.extent.length + self.missing + scratch
            self.model.prefixes.ensure(self.extent, rows)
        except OutOfRowsError:
            return False
        return True

    def next_piece(self, most: int) -> list[int]:
        """The first tokens that are not read yet; ids that the model does not know become its
        last one."""
        prompt, tokens = self.context.prompt, self.context.tokens
        piece = prompt[self.sure : self.sure + most]
        start = max(0, self.sure - len(prompt))
        piece += tokens[start : start + most - len(piece)]
        return [min(token, self.model.vocabulary - 1) for token in piece]

    def close(self) -> None:
        """Give the rows back."""
        if self.extent is None:
            return
        self.model.arena.truncate(self.extent, self.sure - self.extent.shared)
        text = [*self.context.prompt, *self.context.tokens]
        self.model.prefixes.leave(text[: self.sure], self.extent, salt=self.context.salt)
        self.extent, self.sure, self.guessed, self.entered = None, 0, [], False

    def _open(self) -> None:
        prompt, salt = self.context.prompt, self.context.salt
        self.extent = self.model.prefixes.open(prompt, ROWS_AHEAD, salt=salt)
        self.sure = self.extent.total

    def _enter(self) -> None:
        """Not before the prompt is read, which may be never: where the target drafts for itself,
        requests would wait for rows that do not come."""
        if not self.entered and not self.in_prompt:
            prompt, salt = self.context.prompt, self.context.salt
            self.model.prefixes.enter(prompt, self.extent, salt=salt)
            self.entered = True

    def _drop_wrong_guesses(self) -> None:
        """The last token of the text is never kept: it is read for what follows it."""
        came = self.context.tokens[max(0, self.sure - len(self.context.prompt)) : -1]
        true = 0
        while true < min(len(came), len(self.guessed)) and came[true] == self.guessed[true]:
            true += 1
        self.sure += true
        self.guessed = []
        self.model.arena.truncate(self.extent, self.sure - self.extent.shared)
