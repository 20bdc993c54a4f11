"""Tree attention in PyTorch that gives a node the same bits whatever else is in the step.

Libraries choose another kernel, and so another order of summing, when a product has another
shape. Here every operation always has the same shape: the keys a node sees are gathered in order
of position, in groups of blocks of 256 positions; a block gives a partial softmax (maximum, sum,
weighted values, all float32) and partials are merged in order of position. What lies beyond a
node's own position, and groups that only its neighbours need, get weight zero and add nothing.
Neither the tree's shape, nor the batch, nor where committed rows end is visible to the sums.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout

BLOCK = 256  # positions that share a partial softmax


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Where the nodes of a step lie and, for each, the cache rows it sees in order of position."""

    rows: np.ndarray  # [N] int64: where the keys and values of a node are written
    positions: np.ndarray  # [N] int64
    seen: Tensor  # [N, P] int32 on the model's device: the p-th row; P is whole groups
    last: Tensor  # [N, 1] int64 there: their own places in `seen`; what it says beyond is ignored
    group: int  # blocks computed at once
    _groups: dict[int | None, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def groups(self, window: int | None) -> list[tuple[Tensor, Tensor]]:
        """Rows [N, group, block] of each group, and [N, group, 1, block]: True = hidden.

        The same for all layers with one window, so made once.
        """
        if window not in self._groups:
            starts = range(0, self.seen.shape[1], self.group * BLOCK)
            self._groups[window] = [self._group(start, window) for start in starts]
        return self._groups[window]

    def _group(self, start: int, window: int | None) -> tuple[Tensor, Tensor]:
        end = start + self.group * BLOCK
        away = self.last - torch.arange(start, end, device=self.last.device)
        hidden = away < 0 if window is None else (away < 0) | (away >= window)
        rows = self.seen[:, start:end].reshape(-1, self.group, BLOCK)
        return rows, hidden.reshape(-1, self.group, 1, BLOCK)


def see(layout: TreeLayout, nodes: np.ndarray, device: torch.device, group: int) -> SeenRows:
    """What these nodes of a layout see."""
    sequences = np.searchsorted(layout.first_node, nodes, "right") - 1
    committed = np.array([sum(count for _, count in each) for each in layout.segments])
    last = committed[sequences] + layout.ancestors[nodes].sum(1, dtype=np.int64) - 1
    span = group * BLOCK
    width = -(-(int(last.max()) + 1) // span) * span
    seen = np.repeat(layout.rows[nodes][:, None], width, 1).astype(np.int32)
    for b in np.unique(sequences):
        place = 0
        members = np.flatnonzero(sequences == b)
        for row, count in layout.segments[b]:
            seen[members, place : place + count] = row + np.arange(count)
            place += count
        first = layout.first_node[b]
        for i in members:
            path = first + np.flatnonzero(layout.ancestors[nodes[i]])
            seen[i, place : place + len(path)] = layout.rows[path]
    return SeenRows(
        layout.rows[nodes],
        layout.positions[nodes],
        torch.from_numpy(seen).to(device),
        torch.from_numpy(last).to(device)[:, None],
        group,
    )


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: SeenRows,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[N, H, D] from query [N, H, D] and one layer's cache rows, keys and values [K, rows, D]."""
    nodes, heads, size = query.shape
    kv_heads = keys.shape[0]
    scaled = query.float() * scale
    grouped = scaled.reshape(nodes, kv_heads, heads // kv_heads, size).transpose(0, 1)
    best = torch.full((*grouped.shape[:3], 1), float("-inf"), device=query.device)
    total, mixed = torch.zeros_like(best), torch.zeros_like(grouped)  # [K, N, G, 1], [K, N, G, D]
    for rows, hidden in layout.groups(window):
        scores = grouped[:, :, None] @ _gather(keys, rows).transpose(-1, -2)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(hidden, float("-inf"))  # [K, N, group, G, block]
        top = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - _finite(top))
        added = weights @ _gather(values, rows)  # [K, N, group, G, D]
        before, best = best, torch.maximum(best, top.amax(2))
        old, new = torch.exp(before - _finite(best)), torch.exp(top - _finite(best)[:, :, None])
        total = total * old + (weights.sum(-1, keepdim=True) * new).sum(2)
        mixed = mixed * old + (added * new).sum(2)
    if sinks is not None:
        sink = sinks.float().reshape(kv_heads, 1, heads // kv_heads, 1)
        top = torch.maximum(best, sink)
        old = torch.exp(best - top)
        total, mixed = total * old + torch.exp(sink - top), mixed * old
    return (mixed / total).transpose(0, 1).reshape(nodes, heads, size).to(query.dtype)


def _gather(cached: Tensor, rows: Tensor) -> Tensor:
    """[K, N, group, block, D] float32 of the cache rows [N, group, block]."""
    found = cached.index_select(1, rows.flatten()).float()
    return found.reshape(len(cached), *rows.shape, cached.shape[-1])


def _finite(maximum: Tensor) -> Tensor:
    """A maximum to subtract: 0 where nothing was seen, so that exp(-inf - it) is 0."""
    return maximum.masked_fill(maximum == float("-inf"), 0.0)
