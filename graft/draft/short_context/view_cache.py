"""A sequence that the target itself drafts for, through a view of its own KV cache rows.

Only the root is uncached: the rows of all committed tokens are the target's exact ones, and those
of draft tokens are dropped before the next draft.
"""

from dataclasses import dataclass

import numpy as np
import torch

from graft.draft.models.cache import DraftCache
from graft.draft.short_context.kv_selection import KVSelection
from graft.models.arena import Extent, OutOfRowsError


@dataclass(slots=True)
class ViewCache(DraftCache):
    """See DraftCache; `base` are the target's rows of the sequence, None before its first step."""

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
