"""Attention in parts, merged by their log-sum-exp as one softmax over all keys (hybrid attention).

For few queries of a draft head over rows in different caches: its own, those of the draft tree,
those of the target. Sums are in float32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor]  # mixed values [..., H, n, D] and log-sum-exp [..., H, n], float32


def attend_rows(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None = None
) -> Part:
    """The part of queries [..., H, n, D] over rows [..., K, S, D].

    mask [..., n, S] is True at visible rows; without one all are. A query without visible rows adds
    nothing to a merge.
    """
    grouped = _grouped(query, keys.shape[-3])  # [..., K, G * n, D]
    scores = (grouped @ keys.transpose(-1, -2)).float() * scale
    if mask is not None:
        apart = scores.unflatten(-2, (-1, query.shape[-2]))  # [..., K, G, n, S]
        scores = apart.masked_fill(~mask[..., None, None, :, :], -torch.inf).flatten(-3, -2)
    weights, sums = _weigh(scores)
    mixed = weights.to(values.dtype) @ values
    return _apart(mixed.float(), query), _apart(sums[..., None], query)[..., 0]


def merge_parts(parts: Sequence[Part]) -> Part:
    """All parts as one; zeros where no row is visible."""
    if len(parts) == 1:
        return parts[0]
    mixed, sums = (torch.stack(each) for each in zip(*parts, strict=True))
    total = sums.logsumexp(0)
    weights = (sums - torch.where(total == -torch.inf, 0, total)).exp()
    return (weights[..., None] * mixed).sum(0), total


def _grouped(query: Tensor, kv_heads: int) -> Tensor:
    """[..., H, n, D] to [..., K, G * n, D]: queries that share a key head are adjacent."""
    return query.unflatten(-3, (kv_heads, -1)).flatten(-3, -2)


def _apart(grouped: Tensor, query: Tensor) -> Tensor:
    """Back to [..., H, n, last]."""
    return grouped.unflatten(-2, (-1, query.shape[-2])).flatten(-4, -3)


def _weigh(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax weights and log-sum-exp of scores [..., S]; zeros where all are -inf."""
    if not scores.shape[-1]:
        return scores, scores.new_full(scores.shape[:-1], -torch.inf)
    sums = scores.logsumexp(-1)
    shift = torch.where(sums == -torch.inf, 0, sums)
    return (scores - shift[..., None]).exp(), sums
