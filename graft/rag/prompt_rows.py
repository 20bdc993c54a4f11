"""A prompt's rows, put together from left to right: pieces that are known, pieces to compute.

What is known is copied, its keys turned to where it stands now; what is not is read by the engine
on top of that, or apart from it after the head alone. Blending (CacheBlend) runs the first layers
over the copied tokens afresh: the tokens whose rows differ most there from the copies are computed
anew in all layers, each seeing everything before it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.models.arena import Extent
from graft.models.language_model import LanguageModel
from graft.models.rotation import KeyRotation
from graft.models.spans import append_rows, read_apart, read_rows, rewrite, rewrite_first
from graft.rag.kept_rows import Entry, KeptRows, at_hand
from graft.rag.reuse import Reuse

LOOK = 2  # layers that are computed to see which tokens differ; in the first one none does

# (how far tokens are from what they should be [n], how many to choose) -> their indices, ascending
Choose = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens first .. end - 1 of a prompt.

    Rows come from `entry`, or are computed: in their place, or `apart` after the head alone. `name`
    is what they are kept under then; "" if they are not.
    """

    first: int
    end: int
    entry: Entry | None = None
    exact: bool = True  # rows are what the model computes here; all of those before are, too
    apart: bool = False
    name: str = ""

    @property
    def is_read(self) -> bool:
        """Whether the engine computes it in its place."""
        return self.entry is None and not self.apart


def farthest(differences: np.ndarray, count: int) -> np.ndarray:
    """The tokens that differ most."""
    return np.sort(np.argsort(-differences, kind="stable")[:count])


@dataclass(slots=True, eq=False)
class PromptRows:
    """`PreparedRows` of a prompt whose pieces follow one another without a gap.

    Holds its entries, so that nothing is lost if they have to give way meanwhile. Any number of
    requests may use it.
    """

    tokens: list[int]
    pieces: list[Piece]
    head: int  # tokens of the fixed head
    shareable: int | None
    kept: KeptRows
    rotation: KeyRotation | None
    reuse: Reuse
    choose: Choose = farthest
    _done: set[str] = field(default_factory=set)  # names kept already

    @property
    def approximate(self) -> bool:
        """See PreparedRows."""
        return not all(piece.exact for piece in self.pieces)

    def unread(self, known: int) -> tuple[int, int]:
        """See PreparedRows."""
        ahead = [piece for piece in self.pieces if piece.end > known]
        first = next(i for i, piece in enumerate(ahead) if piece.is_read)
        rest = (piece.first for piece in ahead[first:] if not piece.is_read)
        return max(known, ahead[first].first), next(rest, len(self.tokens))

    def fill(self, model: LanguageModel, extent: Extent) -> tuple[int, int]:
        """See PreparedRows."""
        known, end = extent.total, self.unread(extent.total)[0]
        ready = [piece for piece in self.pieces if piece.end > known and piece.first < end]
        for piece in ready:
            if not piece.is_read:
                self._put(model, extent, piece)
        copied = [piece for piece in ready if not (piece.is_read or piece.exact)]
        exact = sum(p.end - max(p.first, known) for p in ready if p.exact and not p.is_read)
        if not copied:
            return exact, 0
        anew = self._blend(model, extent, copied[0].first, copied[-1].end)
        known = [np.arange(piece.first, piece.end) for piece in copied if piece.entry]
        return exact, len(np.setdiff1d(np.concatenate(known), anew)) if known else 0

    def keep(self, model: LanguageModel, extent: Extent) -> None:
        """See PreparedRows."""
        for piece in self.pieces:
            is_there = piece.is_read and piece.end <= extent.total
            if is_there and piece.name and piece.name not in self._done:
                rows = read_rows(model, extent, piece.first, piece.end)
                self._keep(piece, rows, piece.first + extent.skipped)

    def _put(self, model: LanguageModel, extent: Extent, piece: Piece) -> None:
        """The rows of a piece, or of what is missing of it, behind those that are there."""
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
            device = read_rows(model, extent, 0, 0).device
            before, after = entry.first + places, piece.first + places
            rows = self.rotation.turned(rows.to(device), before, after)
        append_rows(model, extent, rows)

    def _compute(self, model: LanguageModel, extent: Extent, piece: Piece) -> Entry:
        """A piece's rows after the head alone."""
        tokens = self.tokens[piece.first : piece.end]
        return self._keep(piece, read_apart(model, extent, tokens, self.head), self.head)

    def _keep(self, piece: Piece, rows: Tensor, first: int) -> Entry:
        self._done.add(piece.name)
        tokens = np.asarray(self.tokens[piece.first : piece.end], np.int32)
        clean = piece.exact or piece.apart
        entry = Entry(piece.name, tokens, at_hand(rows), first, clean=clean)
        self.kept.put(entry)
        return entry

    def _blend(self, model: LanguageModel, extent: Extent, first: int, end: int) -> np.ndarray:
        """Compute a share of the tokens first .. end - 1 anew; which."""
        count = round(self.reuse.blended * (end - first))
        if not count:
            return np.arange(0)
        copied = read_rows(model, extent, first, end)[:, :LOOK].clone()
        rewrite_first(model, extent, first, self.tokens[first:end], min(LOOK, copied.shape[1]))
        fresh = read_rows(model, extent, first, end)[:, :LOOK]
        chosen = first + self.choose(_differences(copied, fresh), count)
        rewrite(model, extent, chosen, [self.tokens[place] for place in chosen])
        return chosen


def _differences(copied: Tensor, fresh: Tensor) -> np.ndarray:
    """[n]: how far keys and values [2, L, K, n, D] are apart, each relative to their size."""
    off = (copied.float() - fresh.float()).square().sum((2, 4))  # [2, L, n]
    size = fresh.float().square().sum((2, 4)).mean(-1, keepdim=True)
    return torch.sqrt(off / size.clamp(min=1e-12)).sum((0, 1)).cpu().numpy()
