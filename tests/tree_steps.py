"""Steps of random numbers for tree attention, and what should come out, computed the slow way."""

from dataclasses import dataclass

import numpy as np

from graft.kernels.tree_layout import TreeLayout
from graft.tree.draft_tree import DraftTree, in_level_order

SIZE = 16  # head size


def random_tree(nodes: int, rng: np.random.Generator, *, width: int = 4) -> DraftTree:
    """Every node hangs on one of the `width` nodes before it."""
    parents = np.array([-1] + [rng.integers(max(0, i - width), i) for i in range(1, nodes)])
    return in_level_order(np.arange(nodes), parents, np.ones(nodes), np.zeros(nodes), ("",))


@dataclass
class Step:
    """Random numbers for one step: queries [N, H, D], cache rows [K, rows, D]."""

    layout: TreeLayout
    query: np.ndarray
    keys: np.ndarray
    values: np.ndarray


def lay_out(
    sequences: list[tuple[list[int], DraftTree]], shared: int = 0, gaps: list[int] | None = None
) -> TreeLayout:
    """Each sequence: lengths of its segments, the first `shared` common to all, and its tree.
    `gaps`: how many positions are left out before each segment."""
    counts = [len(tree) for _, tree in sequences]
    first = np.concatenate([[0], np.cumsum(counts)])
    segments, rows, positions, end = [], [], [], 16
    for b, (lengths, tree) in enumerate(sequences):
        own = list(segments[0][:shared]) if b else []
        for length in lengths[len(own) :]:
            own.append((end, length))
            end = -(-(end + length + len(tree)) // 16) * 16 + 16 * (b % 2)
        segments.append(own)
        rows.append(sum(own[-1]) + np.arange(len(tree)))
        positions.append(sum(lengths) + tree.depths)
    parents = np.concatenate([tree.parents for _, tree in sequences]).astype(np.int64)
    starts = None
    if gaps:
        skipped = np.cumsum(gaps)
        starts = [
            (np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(int) + skipped).tolist()
            for lengths, _ in sequences
        ]
        positions = [each + skipped[-1] for each in positions]
    return TreeLayout(
        first, segments, np.concatenate(rows), np.concatenate(positions), parents, starts
    )


def random_step(
    layout: TreeLayout, heads: int, kv_heads: int, rng: np.random.Generator, size: int = SIZE
) -> Step:
    rows = -(-(int(layout.rows.max()) + 1) // 16) * 16
    shapes = [(len(layout.rows), heads, size), (kv_heads, rows, size), (kv_heads, rows, size)]
    return Step(layout, *(rng.standard_normal(shape).astype(np.float32) for shape in shapes))


def brute_force(step: Step, *, scale=0.3, window=None, softcap=None, sinks=None) -> np.ndarray:
    """One node, one head, one key at a time, in float64."""
    layout, result = step.layout, np.zeros(step.query.shape)
    heads, kv_heads = step.query.shape[1], len(step.keys)
    for b, segments in enumerate(layout.segments):
        first, last = layout.first_node[b : b + 2]
        committed = np.concatenate([row + np.arange(count) for row, count in segments])
        for i in range(first, last):
            path = [j for j in range(first, last) if layout.ancestors[i, j - first]]
            rows = np.concatenate([committed, layout.rows[path]]).astype(int)
            starts = zip(layout.starts_of(b), segments, strict=True)
            known = [start + np.arange(count) for start, (_, count) in starts]
            places = np.concatenate([*known, layout.positions[path]])
            if window is not None:
                rows = rows[layout.positions[i] - places < window]
            for h in range(heads):
                keys, values = (x[h // (heads // kv_heads), rows] for x in (step.keys, step.values))
                scores = keys.astype(np.float64) @ step.query[i, h] * scale
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                exponents = np.exp(scores)
                total = exponents.sum() + (0 if sinks is None else np.exp(sinks[h]))
                result[i, h] = exponents @ values / total
    return result
