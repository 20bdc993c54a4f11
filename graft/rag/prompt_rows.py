"""A prompt's rows, assembled from left to right of cached and computed pieces.

Cached rows are copied, with keys rotated to their new positions. Other pieces are computed by the
engine on top of them, or separately after the head only. Blending (CacheBlend) recomputes the first
layers of the copied tokens; the tokens whose rows differ most from the copies are recomputed in all
layers, each attending to everything before it.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.models.rotation import KeyRotation
from graft.models.spans import append_rows, read_apart, read_rows, rewrite, rewrite_first
from graft.rag.reuse import Reuse
from graft.rag.row_cache import Entry, RowCache, to_storage

PROBE_LAYERS = 2  # recomputed to see which tokens differ; in the first layer none does


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens first .. end - 1 of a prompt.

    Rows come from `entry`, or are computed: in place, or `apart` after the head only, and then
    cached as `name` ("": not cached).
    """

    first: int
    end: int
    entry: Entry | None = None
    exact: bool = True  # these rows and all before are what the model computes here
    apart: bool = False
    name: str = ""

    @property
    def computed_in_place(self) -> bool:
        """Whether the engine computes it in the prefill."""
        return self.entry is None and not self.apart


def farthest(differences: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest differences [n], ascending."""
    return np.sort(np.argsort(-differences, kind="stable")[:count])


@dataclass(slots=True, eq=False)
class PromptRows:
    """`PreparedRows` of a prompt whose pieces follow one another without a gap.

    It holds its entries, so eviction from the cache does not matter. Any number of requests may use
    it.
    """

    tokens: list[int]
    pieces: list[Piece]
    head: int  # tokens of the fixed head
    shareable: int | None
    cache: RowCache
    rotation: KeyRotation | None
    reuse: Reuse
    approximate: bool = field(init=False)  # see PreparedRows
    _done: set[str] = field(default_factory=set)  # names that are in the cache

    def __post_init__(self) -> None:
        self.approximate = not all(piece.exact for piece in self.pieces)

    def unread(self, known: int) -> tuple[int, int]:
        """See PreparedRows."""
        ahead = [piece for piece in self.pieces if piece.end > known]
        first = next(i for i, piece in enumerate(ahead) if piece.computed_in_place)
        rest = (piece.first for piece in ahead[first:] if not piece.computed_in_place)
        return max(known, ahead[first].first), next(rest, len(self.tokens))

    def fill(self, model: LanguageModel, extent: Extent) -> tuple[int, int]:
        """See PreparedRows."""
        known, end = extent.total, self.unread(extent.total)[0]
        ready = [piece for piece in self.pieces if piece.end > known and piece.first < end]
        for piece in ready:
            if not piece.computed_in_place:
                self._put(model, extent, piece)
        copied = [piece for piece in ready if not (piece.computed_in_place or piece.exact)]
        exact = sum(
            p.end - max(p.first, known) for p in ready if p.exact and not p.computed_in_place
        )
        if not copied:
            return exact, 0
        recomputed = self._blend(model, extent, copied[0].first, copied[-1].end)
        cached = [np.arange(piece.first, piece.end) for piece in copied if piece.entry]
        return exact, len(np.setdiff1d(np.concatenate(cached), recomputed)) if cached else 0

    def keep(self, model: LanguageModel, extent: Extent) -> None:
        """See PreparedRows."""
        for piece in self.pieces:
            complete = piece.computed_in_place and piece.end <= extent.total
            if complete and piece.name and piece.name not in self._done:
                rows = read_rows(model, extent, piece.first, piece.end)
                self._keep(piece, rows, piece.first + extent.skipped)

    def _put(self, model: LanguageModel, extent: Extent, piece: Piece) -> None:
        """Append the rows of a piece, or of the part that is missing, to the extent."""
        entry = piece.entry or self._compute(model, extent, piece)
        begun = extent.total - piece.first
        places = np.arange(begun, piece.end - piece.first)
        rows = entry.rows[:, :, :, begun:]
        if self.reuse.mode == "keep" and not piece.exact:
            last = max(extent.position, entry.first + len(entry.tokens), piece.end)
            append_rows(model, extent, rows)
            extent.skipped = last - extent.total
            return
        if not piece.exact:
            assert self.rotation is not None  # of every approximate mode
            device = read_rows(model, extent, 0, 0).device
            before, after = entry.first + places, piece.first + places
            rows = self.rotation.rotated(rows.to(device), before, after)
        append_rows(model, extent, rows)

    def _compute(self, model: LanguageModel, extent: Extent, piece: Piece) -> Entry:
        """The rows of a piece, computed after the head only."""
        tokens = self.tokens[piece.first : piece.end]
        return self._keep(piece, read_apart(model, extent, tokens, self.head), self.head)

    def _keep(self, piece: Piece, rows: Tensor, first: int) -> Entry:
        self._done.add(piece.name)
        tokens = np.asarray(self.tokens[piece.first : piece.end], np.int32)
        exact = piece.exact or piece.apart
        entry = Entry(piece.name, tokens, to_storage(rows), first, exact=exact)
        self.cache.put(entry)
        return entry

    def _blend(self, model: LanguageModel, extent: Extent, first: int, end: int) -> np.ndarray:
        """Recompute a share of the tokens first .. end - 1; returns their indices."""
        count = round(self.reuse.blended * (end - first))
        if not count:
            return np.arange(0)
        copied = read_rows(model, extent, first, end)[:, :PROBE_LAYERS].clone()
        rewrite_first(
            model, extent, first, self.tokens[first:end], min(PROBE_LAYERS, copied.shape[1])
        )
        fresh = read_rows(model, extent, first, end)[:, :PROBE_LAYERS]
        chosen = first + farthest(_differences(copied, fresh), count)
        rewrite(model, extent, chosen, [self.tokens[place] for place in chosen])
        return chosen


def _differences(copied: Tensor, fresh: Tensor) -> np.ndarray:
    """[n]: the distance of keys and values [2, L, K, n, D], relative to their norm."""
    squared = (copied.float() - fresh.float()).square().sum((2, 4))  # [2, L, n]
    size = fresh.float().square().sum((2, 4)).mean(-1, keepdim=True)
    return torch.sqrt(squared / size.clamp(min=1e-12)).sum((0, 1)).cpu().numpy()
