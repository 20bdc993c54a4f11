"""Rows of parts of a sequence: read, appended to another sequence, recomputed in part.

For prompts that are joined from chunks prefilled before. Temporary extents name rows of another
extent; they own no rows and are not released.
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
    """Append and commit rows in the form that `read_rows` returns."""
    count = rows.shape[3]
    model.prefixes.ensure(extent, extent.length + count)
    own = extent.start + extent.length + np.arange(count)
    model.arena.storage.write(own, rows)
    extent.length += count


def read_apart(model: LanguageModel, extent: Extent, tokens: Sequence[int], after: int) -> Tensor:
    """[2, L, K, n, D]: rows of tokens as if they followed the first `after` committed ones.

    They are computed in the scratch rows, which stay free. In an unbounded arena the part of the
    prefix that is no whole block is copied there first: attention then sums in the same order as
    in a sequence of its own, see `arena.BLOCK`.
    """
    shared = after if model.arena.max_rows else after // BLOCK * BLOCK
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
    """Recompute the committed rows at these places (ascending, of the extent's own rows).

    `tokens` are those at the places. Each attends to all rows before it, recomputed ones included:
    every layer writes all keys and values before it attends.
    """
    for start in range(0, len(places), model.chunk):
        part = slice(start, start + model.chunk)
        views, trees = _runs(extent, places[part], tokens[part])
        model.run(views, trees, np.array([sum(map(len, trees)) - 1]))


def rewrite_first(
    model: LanguageModel, extent: Extent, first: int, tokens: Sequence[int], layers: int
) -> None:
    """Recompute the committed rows from `first` on, in the first `layers` alone."""
    for start in range(0, len(tokens), model.chunk):
        piece = tokens[start : start + model.chunk]
        views, trees = _runs(extent, first + start + np.arange(len(piece)), piece)
        model.run_first(views, trees, layers)


def _runs(
    extent: Extent, places: np.ndarray, tokens: Sequence[int]
) -> tuple[list[Extent], list[DraftTree]]:
    """Views and chains, one for each run of consecutive places."""
    assert places[0] >= extent.shared, "shared rows must not change"
    borders = [0, *(np.flatnonzero(np.diff(places) > 1) + 1).tolist(), len(places)]
    views, trees = [], []
    for start, end in pairwise(borders):
        before = int(places[start]) - extent.shared  # rows of its own
        view = Extent(extent.start, extent.capacity, before, extent.prefix, extent.shared)
        views.append(view)
        trees.append(chain(tokens[start:end]))
    return views, trees
