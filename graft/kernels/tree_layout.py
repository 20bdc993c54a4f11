"""The cache rows and the visible keys of a step's nodes: the argument of every tree attention.

The nodes of all sequences are concatenated. Node i of a sequence attends to the sequence's
committed keys (segments of cache rows, oldest first, positions 0, 1, 2, ...) and, among the nodes
of its own sequence, to its ancestors and itself. A sequence with a selection of its context has
segments with gaps between their positions.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numba import njit

SPLIT = 256  # positions per partial softmax where bits must not depend on the step


@dataclass(eq=False)  # a frozen one takes three times as long to create
class TreeLayout:
    """Arrays that must not be changed; the rows of a sequence's nodes follow its last segment."""

    first_node: np.ndarray  # [B + 1] int64: nodes of sequence b are first_node[b] .. [b + 1]
    segments: list[list[tuple[int, int]]]  # per sequence (first row, committed rows)
    rows: np.ndarray  # [N] int64: where the keys and values of a node are written
    positions: np.ndarray  # [N] int64
    parents: np.ndarray  # [N] int64, counted within the sequence; -1 for its first node
    starts: list[list[int]] | None = None  # positions of the segments; None: without gaps from 0

    def __post_init__(self) -> None:
        for segments, (first, last) in zip(
            self.segments, pairwise(self.first_node.tolist()), strict=True
        ):
            tail = sum(segments[-1])
            assert last == first or self.rows[first] == tail, "nodes must follow the last segment"

    def starts_of(self, b: int) -> list[int]:
        """The position of the first row of each segment of a sequence."""
        if self.starts is not None:
            return self.starts[b]
        return list(accumulate((count for _, count in self.segments[b][:-1]), initial=0))

    @cached_property
    def ancestors(self) -> np.ndarray:
        """[N, W] uint8: whether node i sees node j of its sequence; W is the largest node count."""
        return _closure(self.first_node, self.parents)

    @cached_property
    def masks(self) -> dict[tuple[object, ...], Any]:
        """Filled in by attention whose layers share masks."""
        return {}


@njit(cache=True)
def spread(first_node, starts, positions, depths):
    """Rows [N] and positions [N] of nodes: consecutive rows from their sequences' starts [B],
    positions by their depths [N]."""
    rows, places = np.empty(len(depths), np.int64), np.empty(len(depths), np.int64)
    for b in range(len(starts)):
        for i in range(first_node[b], first_node[b + 1]):
            rows[i] = starts[b] + i - first_node[b]
            places[i] = positions[b] + depths[i]
    return rows, places


@njit(cache=True)
def _closure(first_node, parents):
    # Loops instead of np.diff and row assignments: numba compiles them in a tenth of the time.
    width = 0
    for b in range(len(first_node) - 1):
        width = max(width, first_node[b + 1] - first_node[b])
    seen = np.zeros((len(parents), width), np.uint8)
    for b in range(len(first_node) - 1):
        base = first_node[b]
        for i in range(base, first_node[b + 1]):
            if parents[i] >= 0:
                for j in range(parents[i] + 1):
                    seen[i, j] = seen[base + parents[i], j]
            seen[i, i - base] = 1
    return seen


@njit(cache=True)
def are_chains(first_node, parents):
    """[B] bool: whether the nodes of a sequence form a chain."""
    chains = np.ones(len(first_node) - 1, np.bool_)
    for b in range(len(chains)):
        for i in range(first_node[b], first_node[b + 1]):
            if parents[i] != i - first_node[b] - 1:
                chains[b] = False
    return chains
