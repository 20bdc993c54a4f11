"""Tree attention of the CPU forward by itself, over a cache in panels."""

import numpy as np
import torch
from numba import njit, prange

from benchmarks.kernels.problem import Problem
from benchmarks.kernels.timing import Call
from graft.kernels.panels import COMPUTING, LANES
from graft.kernels.tree_attention_panels import attend_split, merge_splits, plan_splits
from graft.models.forward_panels import use_threads
from graft.models.storage import PanelStorage

NO_WINDOW = 0


def panel_attention(problem: Problem) -> Call:
    """The call to time, its cache laid out and its work planned before."""
    nodes, heads, size = problem.query.shape
    kv_heads, rows = problem.keys.shape[:2]
    storage = PanelStorage(1, kv_heads, size)
    storage.resize(-(-rows // LANES) * LANES)
    storage.write(np.arange(rows), torch.stack([problem.keys, problem.values])[:, None])
    grouped = problem.query.float().reshape(nodes, kv_heads, -1, size).permute(1, 0, 2, 3)
    query = np.ascontiguousarray(grouped.numpy())
    plan = plan_splits(problem.layout)
    splits = np.concatenate([np.arange(block[3]) for block in plan.blocks])
    lead = (int(splits.max()) + 1, kv_heads, nodes * heads // kv_heads)
    partial = (*(np.empty(lead, np.float32) for _ in range(2)), np.empty((*lead, size), np.float32))
    attended = np.empty((nodes, heads, size), np.float32)
    sight = (problem.layout.ancestors, problem.layout.positions, NO_WINDOW)
    cache, scale = (storage.keys, storage.values), np.float32(problem.scale)
    threads = use_threads()

    def call() -> torch.Tensor:
        with COMPUTING:
            attend(query, cache, sight, (plan.tasks, splits, plan.blocks), partial, attended, scale,
                   threads)  # fmt: skip
        return torch.from_numpy(attended)

    return call


@njit(parallel=True, cache=True, boundscheck=False, nogil=True)
def attend(query, cache, sight, plan, partial, attended, scale, threads):  # noqa: ANN001, ANN201, PLR0913
    """attended [N, H, D] of one layer, tasks shared out between the threads as in the forward."""
    tasks, splits, blocks = plan
    kv_heads = query.shape[0]
    for t in prange(threads):
        for task in range(t, tasks.shape[0] * kv_heads, threads):
            place, head = task // kv_heads, task % kv_heads
            split = splits[place]
            result = (partial[0][split], partial[1][split], partial[2][split])
            attend_split(0, head, tasks[place], query, cache, sight, scale, result)
    for t in prange(threads):
        for task in range(t, blocks.shape[0] * kv_heads, threads):
            merge_splits(task % kv_heads, blocks[task // kv_heads], partial, attended)
