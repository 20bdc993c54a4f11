"""Stretches of a sequence as rows: read, put behind another text, computed anew in part.

For texts that are put together from pieces read before. A forward needs no more than an extent
that says which rows come before its nodes and where they go, so all of this is made of extents
that look at the rows of another one; they own nothing and are given back to nobody.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from graft.models.arena import BLOCK, Extent
from graft.models.language_model import LanguageModel
from graft.tree.draft_tree import DraftTree, chain


def read_rows(model: LanguageModel, extent: Extent, first: int, last: int) -> Tensor:
    """[2, L, K, n, D]: keys and values of the committed tokens first .. last - 1."""
    return model.arena.storage.read(extent.rows[first:last])


def append_rows(model: LanguageModel, extent: Extent, rows: Tensor) -> None:
    """Rows of the tokens that come next, as `read_rows` gives them; they are committed."""
    count = rows.shape[3]
    model.prefixes.ensure(extent, extent.length + count)
    own = extent.start + extent.length + np.arange(count)
    model.arena.storage.write(own, rows)
    extent.length += count


def read_apart(model: LanguageModel, extent: Extent, tokens: Sequence[int], after: int) -> Tensor:
    """[2, L, K, n, D]: rows of tokens as if they followed the first `after` committed ones.

    They are computed in the free rows behind the committed ones, which are left free. Where there
    is room without end, what they follow is copied there as far as it is no whole block: attention
    then sums in the same order as if they stood there in earnest, see `arena.BLOCK`.
    """
    shared = after if model.arena.most_rows else after // BLOCK * BLOCK
    count = after - shared + len(tokens)
    model.prefixes.ensure(extent, extent.length + count)
    view = Extent(extent.start + extent.length, count, prefix=extent, shared=shared)
    own = view.start + np.arange(count)
    model.arena.storage.move(extent.rows[shared:after], own[: after - shared])
    view.length = after - shared
    for start in range(0, len(tokens), model.chunk):
        piece = tokens[start : start + model.chunk]
        model.run([view], [chain(piece)], np.array([len(piece) - 1]))
        view.length += len(piece)
    return model.arena.storage.read(own[after - shared :])


def rewrite(
    model: LanguageModel, extent: Extent, places: np.ndarray, tokens: Sequence[int]
) -> None:
    """Compute the committed rows at these places (ascending, of the extent's own rows) anew.

    `tokens` are those at the places. Each sees all rows before it, the new ones where there are
    new ones: in every layer keys and values are written before anybody looks at them.
    """
    for start in range(0, len(places), model.chunk):
        part = slice(start, start + model.chunk)
        views, trees = _runs(extent, places[part], tokens[part])
        model.run(views, trees, np.array([sum(map(len, trees)) - 1]))


def rewrite_first(
    model: LanguageModel, extent: Extent, first: int, tokens: Sequence[int], layers: int
) -> None:
    """Compute the committed rows from `first` on anew, in the first layers alone."""
    for start in range(0, len(tokens), model.chunk):
        piece = tokens[start : start + model.chunk]
        views, trees = _runs(extent, first + start + np.arange(len(piece)), piece)
        model.run_first(views, trees, layers)


def _runs(
    extent: Extent, places: np.ndarray, tokens: Sequence[int]
) -> tuple[list[Extent], list[DraftTree]]:
    """Views and chains, one for each run of places that follow one another."""
    assert places[0] >= extent.shared, "shared rows are not ours to change"
    borders = [0, *(np.flatnonzero(np.diff(places) > 1) + 1).tolist(), len(places)]
    views, trees = [], []
    for start, end in pairwise(borders):
        before = int(places[start]) - extent.shared  # rows of its own
        view = Extent(extent.start, extent.capacity, before, extent.prefix, extent.shared)
        views.append(view)
        trees.append(chain(tokens[start:end]))
    return views, trees
