"""Self-speculation: the target drafts with a part of its own KV cache (MagicDec).

There is no second model and no second cache: a draft token needs the target's weights and a small
part of a long context's keys and values (`kv_selection.py`). That saves time where a step reads
more KV cache than weights: long contexts, many sequences at once. A sequence whose selection leaves
nothing out gets no draft.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.drafter import DraftContext
from graft.draft.models.cache import DraftCache
from graft.draft.models.cost_model import CostModel, NoCostLimit
from graft.draft.models.growth import Growth
from graft.draft.models.model import DraftModel, ModelDrafter, SequenceState
from graft.draft.models.partial_draft import PartialDraft
from graft.draft.short_context.kv_selection import KVSelection
from graft.models.arena import Extent, OutOfRowsError
from graft.models.language_model import TargetStep


@dataclass(slots=True)
class ViewCache(DraftCache):
    """The target's own rows of a sequence, seen through `selection`; see DraftCache.

    Only the root is uncached: committed tokens have the target's exact rows (`base`, None before
    its first step), and rows of draft tokens are dropped before the next draft.
    """

    selection: KVSelection | None = None
    base: Extent | None = None
    chosen: Extent | None = None  # rows gathered from the prompt's

    @property
    def visible(self) -> int:
        """See DraftCache."""
        return self.extent.sees

    @property
    def sees_all(self) -> bool:
        """Whether the selection leaves no row out, so that drafting costs as much as decoding."""
        return not self.selection.leaves_out(len(self.context.prompt), self.length - 1)

    def prepare(self, depth: int, scratch: int) -> bool:
        """See DraftCache."""
        if self.base is None or self.base.total != self.length - 1 or self.sees_all:
            return False
        if self.length + depth > self.model.context_length:
            self.close()
            return False
        try:
            self._open()
            self.extent.length = 0
            self.model.prefixes.ensure(self.extent, 1 + scratch)
        except OutOfRowsError:
            return False
        self.extent.look(*self.selection.spans(len(self.context.prompt), self.base.total))
        self.cached, self.drafted = self.base.total, []
        return True

    def close(self) -> None:
        """See DraftCache."""
        for each in (self.extent, self.chosen):
            if each is not None:
                self.model.close(each)
        self.extent, self.chosen, self.cached, self.drafted = None, None, 0, []

    def _open(self) -> None:
        if self.extent is None:
            self.extent = self.model.look(self.base, 1)
        if self.selection.gathered and self.chosen is None:
            self.chosen = self.model.prefixes.reserve(self.selection.gathered)
            self._gather()
            self.extent.chosen = self.chosen

    def _gather(self) -> None:
        """Copy the rows selected per layer and head, once, after the prompt's prefill."""
        count, storage = self.selection.gathered, self.model.arena.storage
        tokens = self.selection.choose(self.model, self.base, self.context.prompt)
        rows = torch.from_numpy(self.base.rows).to(tokens.device)
        storage.gather(rows[tokens], self.chosen.start + np.arange(count))
        self.chosen.length = count


class SelfDrafter(ModelDrafter):
    """Drafts with the target over the KV cache rows of `selection`.

    `target` has the target's own step costs; a draft's are those at the length of the selection.
    """

    def __init__(
        self, target: DraftModel, growth: Growth, selection: KVSelection, *, adaptive: bool = False
    ) -> None:
        super().__init__(target, growth, nodes=growth.depth, adaptive=adaptive)
        self._selection = selection

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            self._states[step.sequence].cache.base = step.extent
        super().observe(steps)

    def sees_all(self, sequence: int) -> bool:
        """Whether the selection is the whole cache, so that nothing is drafted."""
        return self._states[sequence].cache.sees_all

    def _open_cache(self, context: DraftContext) -> ViewCache:
        return ViewCache(self._model, context, selection=self._selection)

    def _begin(
        self, ready: list[SequenceState], costs: CostModel | NoCostLimit
    ) -> tuple[list[PartialDraft], Tensor | None]:
        """See ModelDrafter. Only the root is uncached: its forward is the first level's."""
        selected = self._select(ready, costs)
        for each in selected:
            each.draft = PartialDraft(each.cache, each.trust, self._selection.source)
        drafts = [each.draft for each in selected]
        if not drafts:
            return [], None
        costs.add_forward(sum(self._growth.rows(draft) for draft in drafts), len(drafts))
        return drafts, self._growth.score(self._model, drafts)
