"""Drafts of the target itself, which sees a part of its own cache only (MagicDec).

No second model and no second cache: a guess reads the target's weights and, of a long context's
keys and values, a small part (`kv_selection.py`). That saves time where reading the cache takes
longer than reading the weights: long contexts, many sequences at once. A text of which the part leaves nothing
out is not drafted for.
"""

from torch import Tensor

from graft.draft.drafter import DraftContext
from graft.draft.models.growth import Growth
from graft.draft.models.guess import Guess
from graft.draft.models.model import DraftModel, ModelDrafter, _Followed
from graft.draft.models.worth import Account, Unlimited
from graft.draft.short_context.kv_selection import KVSelection
from graft.draft.short_context.view_reader import ViewReader
from graft.models.language_model import TargetStep


class SelfDrafter(ModelDrafter):
    """The target guesses what it will write from what it sees through `selection`.

    `helper` is the target itself; its steps cost what they cost at the length of what is seen.
    """

    def __init__(
        self, helper: DraftModel, growth: Growth, selection: KVSelection, *, adaptive: bool = False
    ) -> None:
        super().__init__(helper, growth, nodes=growth.depth, adaptive=adaptive)
        self._selection = selection

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            self._followed[step.sequence].reader.base = step.extent
        super().observe(steps)

    def sees_all(self, sequence: int) -> bool:
        """Whether it would guess with all that the target sees, and so does not."""
        return self._followed[sequence].reader.sees_all

    def _reader(self, context: DraftContext) -> ViewReader:
        return ViewReader(self._model, context, selection=self._selection)

    def _begin(
        self, ready: list[_Followed], account: Account | Unlimited
    ) -> tuple[list[Guess], Tensor | None]:
        """See ModelDrafter. Only the root is missing: reading it is the first level's forward."""
        chosen = self._chosen(ready, account)
        for each in chosen:
            each.guess = Guess(each.reader, each.trust, self._selection.source)
        guesses = [each.guess for each in chosen]
        if not guesses:
            return [], None
        account.pay(sum(self._growth.rows(guess) for guess in guesses), len(guesses))
        return guesses, self._growth.read(self._model, guesses)
