"""Batch-invariant tree attention in PyTorch: a node has the same bits in any step.

Libraries select the kernel, and so the order of summation, by the shape of a product. Here every
operation always has the same shape. The keys visible to a node are gathered in order of position,
in groups of blocks of 256 positions. A block gives a partial softmax (maximum, sum, weighted
values, all float32), and partials are merged in order of position. Keys behind the node's own
position, and groups that only other nodes need, get weight zero and add nothing. The sums do not
depend on the tree's shape, the batch, or the number of committed rows. Where positions are left
out, blocks still hold 256 keys.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout

BLOCK = 256  # positions that share a partial softmax


@dataclass(frozen=True, slots=True)
class SeenRows:
    """The rows of a step's nodes and the visible cache rows of each, in order of position."""

    rows: np.ndarray  # [N] int64: where the keys and values of a node are written
    positions: np.ndarray  # [N] int64
    seen: Tensor  # [N, P] int32 on the model's device: visible rows; P is a multiple of the group
    places: Tensor  # [N, P] int32 on the device: their positions
    last: Tensor  # [N, 1] int64 on the device: index of the node in `seen`; the rest is padding
    group: int  # blocks computed at once
    _groups: dict[int | None, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def groups(self, window: int | None) -> list[tuple[Tensor, Tensor]]:
        """Rows [N, group, block] of each group, and [N, group, 1, block]: True = hidden.

        Computed once for all layers with the same window.
        """
        if window not in self._groups:
            starts = range(0, self.seen.shape[1], self.group * BLOCK)
            self._groups[window] = [self._group(start, window) for start in starts]
        return self._groups[window]

    def _group(self, start: int, window: int | None) -> tuple[Tensor, Tensor]:
        end = start + self.group * BLOCK
        hidden = torch.arange(start, end, device=self.last.device) > self.last
        if window is not None:
            position = self.places.gather(1, self.last)
            hidden |= position - self.places[:, start:end] >= window
        rows = self.seen[:, start:end].reshape(-1, self.group, BLOCK)
        return rows, hidden.reshape(-1, self.group, 1, BLOCK)


def see(layout: TreeLayout, nodes: np.ndarray, device: torch.device, group: int) -> SeenRows:
    """The visible rows of these nodes of a layout."""
    sequences = np.searchsorted(layout.first_node, nodes, "right") - 1
    each = [_seen_by(layout, int(b), node) for b, node in zip(sequences, nodes, strict=True)]
    span = group * BLOCK
    width = -(-max(len(rows) for rows, _ in each) // span) * span
    both = np.empty((2, len(nodes), width), np.int32)
    for i, pair in enumerate(each):
        count = len(pair[0])
        both[:, i, :count] = pair
        both[:, i, count:] = both[:, i, count - 1 : count]
    seen, places = torch.from_numpy(both).to(device)
    last = torch.tensor([[len(rows) - 1] for rows, _ in each], device=device)
    return SeenRows(layout.rows[nodes], layout.positions[nodes], seen, places, last, group)


def _seen_by(layout: TreeLayout, b: int, node: int) -> tuple[np.ndarray, np.ndarray]:
    """The visible rows of a node, its own last, and their positions."""
    path = layout.first_node[b] + np.flatnonzero(layout.ancestors[node])
    segments, starts = layout.segments[b], layout.starts_of(b)
    rows = [row + np.arange(count) for row, count in segments]
    places = [start + np.arange(len(each)) for start, each in zip(starts, rows, strict=True)]
    return (
        np.concatenate([*rows, layout.rows[path]]),
        np.concatenate([*places, layout.positions[path]]),
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
    """The maximum, or 0 where it is -inf, so that exp(-inf - maximum) is 0."""
    return maximum.masked_fill(maximum == float("-inf"), 0.0)
