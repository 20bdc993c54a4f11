"""Tree attention on the CPU over a cache in panels, the same to the last bit for any tree.

Keys are stored as [rows / 16, D, 16] and values as [D / 16, rows, 16], so both products use
`multiply_panel`. Keys are grouped into splits of 256 positions; a split gives a partial softmax
(maximum, sum, weighted values), and partials are merged in order of position. A masked key gets
weight zero, which adds nothing. A node's result depends only on its visible keys and their
positions, not on the other nodes of the tree.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from graft.kernels.elementwise import exponentiate, fast_exp, largest
from graft.kernels.llvm_ir import address_of
from graft.kernels.panels import LANES, UNROLL, multiply_panel
from graft.kernels.tree_layout import SPLIT, TreeLayout

WIDTH = 2 * SPLIT  # keys of a split that fit; only very wide trees need more
BLOCK = 64  # nodes that share a task
ROWS = 16  # query rows whose scores are computed at a time

# Columns of a task. Keys are counted from `ROW`, a multiple of 16; those before `SKIP` are not
# in the split; from `TREE` on they are tree nodes, the first of them node `FIRST` of the step.
NODE, NODES, ROW, SKIP, KEYS, POSITION, TREE, FIRST, BASE = range(9)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The tasks of one step: every (block of nodes, split of keys), and which are merged."""

    tasks: np.ndarray  # [T, 9] int64: see the column names above
    blocks: np.ndarray  # [Q, 4] int64: first node, nodes, first task, tasks


def plan_splits(layout: TreeLayout) -> SplitPlan:
    """The tasks of a step; a block of nodes skips the keys of later nodes of its sequence."""
    tasks: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for b, segments in enumerate(layout.segments):
        start, end = int(layout.first_node[b]), int(layout.first_node[b + 1])
        keys = layout.starts_of(b)
        for node in range(start, end, BLOCK):
            nodes = min(BLOCK, end - node)
            first_task = len(tasks)
            for (row, committed), key in zip(segments[:-1], keys[:-1], strict=True):
                tasks += split_rows(row, committed, key, (node, nodes, start))
            row, committed = segments[-1]
            seen = layout.positions[start : node + nodes]
            tasks += split_tree(row, committed, keys[-1], seen, (node, nodes, start))
            blocks.append((node, nodes, first_task, len(tasks) - first_task))
    return SplitPlan(
        np.array(tasks, np.int64).reshape(-1, 9), np.array(blocks, np.int64).reshape(-1, 4)
    )


def split_rows(
    row: int, count: int, key: int, block: tuple[int, int, int]
) -> list[tuple[int, ...]]:
    """Splits of a segment of committed rows whose first key has position `key`."""
    return split_tree(row, count, key, np.empty(0, np.int64), block)


def split_tree(
    row: int, committed: int, key: int, tree: np.ndarray, block: tuple[int, int, int]
) -> list[tuple[int, ...]]:
    """Splits of committed rows followed by tree nodes at the (ascending) positions `tree`."""
    node, nodes, base = block
    end = key + committed
    last = int(tree[-1]) if len(tree) else end - 1
    tasks: list[tuple[int, ...]] = []
    for split in range(key // SPLIT, last // SPLIT + 1):
        low, high = max(key, split * SPLIT), min(end, (split + 1) * SPLIT)
        old = max(0, high - low)
        if len(tree) and (split + 1) * SPLIT > end:
            since, until = np.searchsorted(tree, (split * SPLIT, (split + 1) * SPLIT))
        else:
            since = until = 0
        if old + until - since == 0:
            continue
        first = row + (low - key if old else committed + int(since))
        skip = first % LANES
        keys = skip + old + int(until - since)
        tasks.append(
            (node, nodes, first - skip, skip, keys, low - skip, skip + old, base + int(since), base)
        )
    return tasks


@njit(cache=True, boundscheck=False)
def hide_keys(scores, task, node, ancestors, positions, window):
    """Set one row of scores to -inf at keys that are masked for `node`."""
    masked = np.float32(-np.inf)
    for j in range(task[SKIP]):
        scores[j] = masked
    shift = task[FIRST] - task[TREE]
    for j in range(task[TREE], task[KEYS]):
        if ancestors[node, shift + j - task[BASE]] == 0:
            scores[j] = masked
    if window > 0:
        oldest = positions[node] - window  # the last position before the window
        for j in range(min(task[TREE], oldest - task[POSITION] + 1)):
            scores[j] = masked
        for j in range(task[TREE], task[KEYS]):
            if positions[shift + j] <= oldest:
                scores[j] = masked


@njit(cache=True, boundscheck=False, fastmath={"contract"})
def weigh_keys(scores, keys, scale):
    """Turn scores into exp(scale * score - maximum) in place; (maximum, sum).

    The sum adds the keys one by one: any regrouping would depend on the tree's shape.
    """
    padded = (keys + LANES - 1) // LANES * LANES
    for j in range(keys, padded):
        scores[j] = np.float32(-np.inf)
    best = largest(scores, padded)
    if best == np.float32(-np.inf):
        for j in range(padded):
            scores[j] = np.float32(0)
        return best, np.float32(0)
    exponentiate(scores, padded, best, scale)
    total = np.float32(0)
    for j in range(keys):
        total += scores[j]
    return best * scale, total


@njit(cache=True, boundscheck=False)
def attend_split(layer, head, task, query, cache, mask, scale, result):
    """Partial attention of a block of nodes over one split of keys, for one key-value head.

    query [K, N, G, D]; cache = keys [L, K, rows / 16, D, 16], values [L, K, D / 16, rows, 16];
    mask = ancestors, positions, window; result = maximum, total [K, N * G], mixed [K, N * G, D]
    of this split.
    """
    keys, values = cache
    ancestors, positions, window = mask
    maximum, total, mixed = result
    _, nodes, groups, size = query.shape
    heads, panels = keys.shape[1], keys.shape[2]
    count, row = task[KEYS], task[ROW]
    depth = (count + UNROLL - 1) // UNROLL * UNROLL
    width = max(WIDTH, (count + LANES - 1) // LANES * LANES)
    scores = np.empty((ROWS, width), np.float32)
    key_place = ((layer * heads + head) * panels + row // LANES) * size * LANES
    first = task[NODE] * groups
    for start in range(first, first + task[NODES] * groups, ROWS):
        rows = min(ROWS, first + task[NODES] * groups - start)
        place = (head * nodes * groups + start) * size
        for panel in range((count + LANES - 1) // LANES):
            key_panel = address_of(keys, key_place + panel * size * LANES)
            target = address_of(scores, panel * LANES)
            multiply_panel(address_of(query, place), key_panel, target, rows, size, size, width)
        for r in range(rows):
            hide_keys(scores[r], task, (start + r) // groups, ancestors, positions, window)
            best, summed = weigh_keys(scores[r], count, scale)
            maximum[head, start + r] = best
            total[head, start + r] = summed
        for panel in range(size // LANES):
            value_row = ((layer * heads + head) * (size // LANES) + panel) * panels * LANES + row
            value_panel = address_of(values, value_row * LANES)
            target = address_of(mixed, place + panel * LANES)
            multiply_panel(address_of(scores, 0), value_panel, target, rows, depth, width, size)


@njit(cache=True, boundscheck=False, fastmath={"contract"}, error_model="numpy")
def merge_splits(head, block, partial, attended):
    """attended [N, H, D] of a block's nodes from the partials [S, K, N * G(, D)] of its tasks."""
    maximum, total, mixed = partial
    node, nodes, _, splits = block
    size = attended.shape[2]
    groups = maximum.shape[2] // attended.shape[0]
    for i in range(node * groups, (node + nodes) * groups):
        target = attended[i // groups, head * groups + i % groups]
        best, summed = maximum[0, head, i], total[0, head, i]
        for d in range(size):  # numba compiles a loop in a tenth of a slice assignment's time
            target[d] = mixed[0, head, i, d]
        for split in range(1, splits):
            if total[split, head, i] == 0:
                continue
            top = max(best, maximum[split, head, i])
            old, new = fast_exp(best - top), fast_exp(maximum[split, head, i] - top)
            best = top
            summed = summed * old + total[split, head, i] * new
            for d in range(size):
                target[d] = target[d] * old + mixed[split, head, i, d] * new
        for d in range(size):
            target[d] /= summed
