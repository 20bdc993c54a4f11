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
from graft.draft.models.cost_model import Costs
from graft.draft.models.growth import Growth
from graft.draft.models.model import DraftModel, ModelDrafter, SequenceState
from graft.draft.models.partial_draft import PartialDraft
from graft.draft.short_context.kv_selection import KVSelection
from graft.models.arena import Extent, OutOfRowsError
from graft.models.view import View


@dataclass(slots=True, kw_only=True)
class ViewCache(DraftCache):
    """The target's own rows of a sequence, seen through `selection`; see DraftCache.

    Only the root is uncached: committed tokens have the target's exact rows (`base`, None before
    its first step), and rows of draft tokens are dropped before the next draft.
    """

    selection: KVSelection
    base: Extent | None = None
    view: View | None = None  # also `extent`
    chosen: Extent | None = None  # rows gathered from the prompt's

    @property
    def visible(self) -> int:
        """See DraftCache."""
        return self.view.sees if self.view else 0

    @property
    def sees_all(self) -> bool:
        """Whether the selection leaves no row out, so that drafting costs as much as decoding."""
        return not self.selection.leaves_out(len(self.context.prompt), self.length - 1)

    def follow(self, target: Extent | None) -> None:
        """See DraftCache."""
        self.base = target

    def prepare(self, depth: int, scratch: int) -> bool:
        """See DraftCache."""
        base = self.base
        if base is None or base.total != self.length - 1 or self.sees_all:
            return False
        if self.length + depth > self.model.context_length:
            self.close()
            return False
        try:
            view = self.view or self._look_at(base)
            view.length = 0
            self.model.prefixes.ensure(view, 1 + scratch)
        except OutOfRowsError:
            return False
        view.look(*self.selection.spans(len(self.context.prompt), base.total))
        self.cached, self.drafted = base.total, []
        return True

    def close(self) -> None:
        """See DraftCache."""
        for each in (self.extent, self.chosen):
            if each is not None:
                self.model.close(each)
        self.extent = self.view = self.chosen = None
        self.cached, self.drafted = 0, []

    def _look_at(self, base: Extent) -> View:
        """A view of the target's rows, after the prompt's prefill."""
        if self.selection.gathered and self.chosen is None:
            self.chosen = self._gathered(base)
        self.extent = self.view = self.model.look(base, 1, self.chosen)
        return self.view

    def _gathered(self, base: Extent) -> Extent:
        """A copy of the rows selected per layer and head."""
        count, storage = self.selection.gathered, self.model.arena.storage
        tokens = self.selection.choose(self.model, base, self.context.prompt)
        chosen = self.model.prefixes.reserve(count)
        rows = torch.from_numpy(base.rows).to(tokens.device)
        storage.gather(rows[tokens], chosen.start + np.arange(count))
        chosen.length = count
        return chosen


class SelfDrafter(ModelDrafter):
    """Drafts with the target over the KV cache rows of `selection`.

    `target` has the target's own step costs; a draft's are those at the length of the selection.
    """

    def __init__(
        self, target: DraftModel, growth: Growth, selection: KVSelection, *, adaptive: bool = False
    ) -> None:
        target.model.require_rows_only("drafts from a part of the context")
        super().__init__(target, growth, nodes=growth.depth, adaptive=adaptive)
        self._selection = selection

    def sees_all(self, sequence: int) -> bool:
        """Whether the selection is the whole cache, so that nothing is drafted."""
        return self._states[sequence].cache.sees_all

    def _open_cache(self, context: DraftContext) -> ViewCache:
        return ViewCache(self._model, context, selection=self._selection)

    def _begin(
        self, ready: list[SequenceState], costs: Costs
    ) -> tuple[list[PartialDraft], Tensor] | None:
        """See ModelDrafter. Only the root is uncached: its forward is the first level's."""
        drafts = []
        for each in self._select(ready, costs):
            each.draft = PartialDraft(each.cache, each.trust, self._selection.source)
            drafts.append(each.draft)
        if not drafts:
            return None
        costs.add_forward(sum(self._growth.rows(draft) for draft in drafts), len(drafts))
        return drafts, self._growth.score(self._model, drafts)
