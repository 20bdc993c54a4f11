"""Hybrid tree attention in plain PyTorch: the reference for the faster kernels.

A node attends without mask to its sequence's committed keys and with the ancestor mask to the
nodes of its own tree (LongSpec, section 3.3); both parts share one softmax. Sliding windows count
positions, not rows, because siblings share a position.
"""

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: TreeLayout,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[N, H, D] from query [N, H, D] and one layer's cache rows, keys and values [K, rows, D]."""
    result = torch.empty_like(query)
    for b, segments in enumerate(layout.segments):
        first, last = int(layout.first_node[b]), int(layout.first_node[b + 1])
        if first == last:
            continue
        seen = [slice(row, row + count) for row, count in segments[:-1]]
        row, count = segments[-1]
        seen.append(slice(row, row + count + last - first))
        result[first:last] = _attend_one(
            query[first:last],
            torch.cat([keys[:, rows] for rows in seen], 1) if len(seen) > 1 else keys[:, seen[0]],
            torch.cat([values[:, rows] for rows in seen], 1)
            if len(seen) > 1
            else values[:, seen[0]],
            _known_bias(layout, b, query, window),
            (scale, softcap, sinks),
        )
    return result


def _known_bias(layout: TreeLayout, b: int, like: Tensor, window: int | None) -> Tensor:
    """Computed once for all layers with the same window."""
    key = (b, window, like.device)
    if key not in layout.masks:
        layout.masks[key] = _bias(layout, b, like, window)
    return layout.masks[key]


def _bias(layout: TreeLayout, b: int, like: Tensor, window: int | None) -> Tensor:
    """[n, keys] fp32: 0 at keys visible to sequence b's nodes, -inf elsewhere."""
    first, last = int(layout.first_node[b]), int(layout.first_node[b + 1])
    nodes = last - first
    committed = sum(count for _, count in layout.segments[b])
    allowed = torch.ones(nodes, committed + nodes, dtype=torch.bool, device=like.device)
    tree = torch.from_numpy(layout.ancestors[first:last, :nodes]).to(like.device)
    allowed[:, committed:] = tree.bool()
    if window is not None:
        position = torch.from_numpy(layout.positions[first:last]).to(like.device)
        pairs = zip(layout.segments[b], layout.starts_of(b), strict=True)
        known = [start + np.arange(count) for (_, count), start in pairs]
        key = torch.cat([torch.from_numpy(np.concatenate(known)).to(like.device), position])
        allowed &= position[:, None] - key[None, :] < window
    zero = torch.zeros(allowed.shape, dtype=torch.float32, device=like.device)
    return zero.masked_fill_(~allowed, float("-inf"))


def _attend_one(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    options: tuple[float, float | None, Tensor | None],
) -> Tensor:
    """One sequence: query [n, H, D], keys and values [K, S, D], bias [n, S] -> [n, H, D]."""
    scale, softcap, sinks = options
    nodes, heads, size = query.shape
    groups = heads // keys.shape[0]
    grouped = query.reshape(nodes, keys.shape[0], groups, size).permute(1, 2, 0, 3)  # [K, G, n, D]
    scores = (grouped @ keys[:, None].transpose(-1, -2)).float() * scale  # [K, G, n, S]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    if sinks is not None:
        sink = sinks.float().reshape(keys.shape[0], groups, 1, 1).expand(-1, -1, nodes, 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., : keys.shape[1]].to(values.dtype)
    mixed = weights @ values[:, None]  # [K, G, n, D]
    return mixed.permute(2, 0, 1, 3).reshape(nodes, heads, size)
