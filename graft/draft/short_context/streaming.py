"""Self-speculation: the target drafts with a part of its own KV cache (MagicDec).

There is no second model and no second cache: a draft token needs the target's weights and a small
part of a long context's keys and values (`kv_selection.py`). That saves time where a step reads
more KV cache than weights: long contexts, many sequences at once. A sequence whose selection leaves
nothing out gets no draft.
"""

from torch import Tensor

from graft.draft.drafter import DraftContext
from graft.draft.models.cost_model import CostModel, NoCostLimit
from graft.draft.models.growth import Growth
from graft.draft.models.model import DraftModel, ModelDrafter, SequenceState
from graft.draft.models.partial_draft import PartialDraft
from graft.draft.short_context.kv_selection import KVSelection
from graft.draft.short_context.view_cache import ViewCache
from graft.models.language_model import TargetStep


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
