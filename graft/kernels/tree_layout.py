"""Where the nodes of a step lie and which keys each may see: the argument of every tree attention.

The nodes of all sequences stand in one flat row. Node i of a sequence attends to the sequence's
committed keys (segments of cache rows, oldest first, positions 0, 1, 2, ...) and, among the nodes
of its own sequence, to its ancestors and itself.
"""

from dataclasses import dataclass

import numpy as np

SPLIT = 256  # positions that attention sums up together, wherever bits must not depend on the step


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """Plain arrays; the last segment of a sequence is followed by the rows of its nodes."""

    first_node: np.ndarray  # [B + 1] int64: nodes of sequence b are first_node[b] .. [b + 1]
    segments: list[list[tuple[int, int]]]  # per sequence (first row, committed rows)
    rows: np.ndarray  # [N] int64: where the keys and values of a node are written
    positions: np.ndarray  # [N] int64
    ancestors: np.ndarray  # [N, W] uint8: may node i see node j of its sequence, W >= all counts

    def __post_init__(self) -> None:
        for b, segments in enumerate(self.segments):
            first, last = self.first_node[b], self.first_node[b + 1]
            tail = sum(segments[-1])
            assert last == first or self.rows[first] == tail, "nodes must follow the last segment"
