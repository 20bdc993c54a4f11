"""Attention over committed rows in panels, without tree nodes: a part for `attention_parts.py`."""

from collections.abc import Sequence

import numpy as np
from numba import njit, prange

from graft.kernels.elementwise import fast_exp
from graft.kernels.tree_attention_panels import attend_split, split_rows


def attend_committed(
    query: np.ndarray,
    cache: tuple[np.ndarray, np.ndarray],
    layer: int,
    segments: Sequence[tuple[int, int]],
    scale: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Mixed values [H, n, D] and log-sum-exp [H, n] of queries [H, n, D] over the rows of these
    segments; keys [L, K, rows / 16, D, 16], values [L, K, D / 16, rows, 16]."""
    keys, values = cache
    heads, nodes, size = query.shape
    kv_heads = keys.shape[1]
    grouped = query.reshape(kv_heads, -1, nodes, size).transpose(0, 2, 1, 3)  # [K, n, G, D]
    tasks = [
        task
        for row, count in segments
        for task in split_rows(row, count, 0, (0, nodes, 0))
        if count
    ]
    unmasked = (np.zeros((1, 1), np.uint8), np.zeros(nodes, np.int64), 0)
    mixed, sums = _attend(
        np.ascontiguousarray(grouped), (keys, values), layer % len(keys),
        np.array(tasks, np.int64).reshape(-1, 9), unmasked, np.float32(scale),
    )  # fmt: skip
    mixed = mixed.reshape(kv_heads, nodes, -1, size).transpose(0, 2, 1, 3)
    sums = sums.reshape(kv_heads, nodes, -1).transpose(0, 2, 1)
    return mixed.reshape(query.shape), sums.reshape(heads, nodes)


@njit(parallel=True, cache=True, boundscheck=False, nogil=True, error_model="numpy")
def _attend(query, cache, layer, tasks, mask, scale):
    """[K, n * G, D] and [K, n * G]: all tasks of every key head, merged in their order."""
    kv_heads, nodes, groups, size = query.shape
    rows = nodes * groups
    maximum = np.empty((len(tasks), kv_heads, rows), np.float32)
    total = np.empty((len(tasks), kv_heads, rows), np.float32)
    partial = np.empty((len(tasks), kv_heads, rows, size), np.float32)
    for place in prange(len(tasks) * kv_heads):
        task, head = place // kv_heads, place % kv_heads
        result = (maximum[task], total[task], partial[task])
        attend_split(layer, head, tasks[task], query, cache, mask, scale, result)
    mixed = np.zeros((kv_heads, rows, size), np.float32)
    sums = np.full((kv_heads, rows), -np.inf, np.float32)
    for head in range(kv_heads):
        for row in range(rows):
            best, summed = np.float32(-np.inf), np.float32(0)
            for task in range(len(tasks)):
                best = max(best, maximum[task, head, row])
            for task in range(len(tasks)):
                weight = fast_exp(maximum[task, head, row] - best)
                summed += weight * total[task, head, row]
                for d in range(size):
                    mixed[head, row, d] += weight * partial[task, head, row, d]
            if summed > 0:
                sums[head, row] = best + np.log(summed)
                for d in range(size):
                    mixed[head, row, d] /= summed
    return mixed, sums
