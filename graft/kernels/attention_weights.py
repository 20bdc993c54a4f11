"""Attention weights of few queries, for methods that select rows of a context.

The attention kernels never materialise these weights; here they are computed a layer at a time.
"""

import torch
from torch import Tensor


def causal_weights(queries: Tensor, keys: Tensor) -> Tensor:
    """[H, n, S] float32: attention weights of the last n of S tokens.

    queries [H, n, D] are scaled (`Forward.queries`), keys [K, S, D] those of all S tokens.
    """
    scores = _scores(queries, keys)
    count, length = scores.shape[1:]
    seen = torch.ones(count, length, dtype=torch.bool, device=scores.device).tril(length - count)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def chunk_scores(queries: Tensor, keys: Tensor, size: int) -> Tensor:
    """[H, n, chunks] float32: products of queries [H, n, D] with the mean keys of whole chunks of
    `size` tokens, out of keys [K, S, D]."""
    whole = keys.shape[1] // size * size
    return _scores(queries, keys[:, :whole].unflatten(1, (-1, size)).float().mean(2))


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    heads, count, _ = queries.shape
    grouped = queries.reshape(len(keys), -1, queries.shape[2]).to(keys.dtype)  # [K, G * n, D]
    return (grouped @ keys.transpose(1, 2)).float().reshape(heads, count, -1)
