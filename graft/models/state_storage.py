"""Recurrent states beside the KV cache rows of a hybrid model.

A recurrent layer remembers a sequence in one state of fixed size, not in a row per token. So a row
may have a state: that of all recurrent layers after the row's token. Rows have one where a sequence
can go on: each scored node, the last token of a prefill chunk, and one row in `spacing` for the
prefix cache. Committing a path moves rows; states follow them without being copied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from graft.kernels.tree_layout import TreeLayout
from graft.models.arena import BLOCK, STATES_BYTES
from graft.models.storage import LazyRowStorage, Links, RowStorage, Segments

ZERO = 0  # the slot of a sequence's first token
STEP_NODES = 256  # of a captured step, that slots are reserved for


@dataclass(frozen=True, slots=True)
class StatePaths:
    """Which states the nodes of a step continue, and where their own are stored."""

    first_node: np.ndarray  # [B + 1], as in TreeLayout
    parents: np.ndarray  # [N]: nodes of the step, or -1 - sequence
    before: np.ndarray  # [B]: slots of the sequences' last committed rows
    slots: np.ndarray  # [N]: where a node's state is stored; -1: nowhere
    chunks: list[int]  # sequences that are prefilled: one node after the other

    @property
    def links(self) -> Links:
        """For the device."""
        slots_before = self.before[np.where(self.parents < 0, -1 - self.parents, 0)]
        above = np.where(self.parents < 0, -1 - slots_before, self.parents)
        nodes = np.stack([above, self.slots], 1).astype(np.int32)
        bounds = self.first_node.astype(np.int32)
        return Links(nodes, np.stack([bounds[:-1], bounds[1:]], 1))


class StateStorage(RowStorage):
    """Rows of the attention layers; states [slots, ...] of the recurrent layers.

    `states` have the shapes and dtypes of one sequence's, such as of convolution and scan.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
        states: Sequence[Tensor],
    ) -> None:
        super().__init__(layers, heads, size, dtype, device)
        self.states = [each.new_zeros((1, *each.shape)) for each in states]
        self.state_bytes = sum(each.nbytes for each in self.states)
        large = self.state_bytes > BLOCK * super().row_bytes
        self.spacing = 4 * BLOCK if large else BLOCK
        self._slots: dict[int, int] = {}  # of rows
        self._users = [1]  # rows of each slot; 0: free
        self._free: list[int] = []

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all layers, with its share of the states kept for the prefix cache."""
        return super().row_bytes + -(-self.state_bytes // self.spacing)

    @property
    def states_used(self) -> int:
        """Number of states that rows have."""
        return sum(map(bool, self._users)) - 1

    def resize(self, rows: int) -> None:
        """See Storage."""
        super().resize(rows)
        self.release(rows, max(self._slots, default=0) + 1)

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """See Storage."""
        moved = [self._slots.get(row) for row in source.tolist()]
        for slot in filter(None, moved):
            self._users[slot] += 1
        super().move(source, target)
        self._drop(target.tolist())
        self._slots |= {row: slot for row, slot in zip(target.tolist(), moved, strict=True) if slot}

    def write(self, rows: np.ndarray, content: Tensor) -> None:
        """See Storage. Rows written from outside have no state."""
        super().write(rows, content)
        self._drop(rows.tolist())

    def release(self, first: int, last: int) -> None:
        """See Storage."""
        if last - first > len(self._slots):
            self._drop([row for row in self._slots if first <= row < last])
        else:
            self._drop(range(first, last))

    def blank(self, row: int) -> None:
        """See Storage."""
        self.take(np.array([row]), np.array([0]))

    def resumable(self, segments: Segments) -> int:
        """See Storage."""
        rows = np.concatenate([first + np.arange(count) for first, count in segments])
        for place in range(len(rows) // self.spacing * self.spacing, 0, -self.spacing):
            if int(rows[place - 1]) in self._slots:
                return place
        return 0

    def before(self, segments: Segments) -> int:
        """The slot of a sequence's last committed row. States of rows before it are dropped, but
        for one in `spacing`."""
        total = sum(count for _, count in segments)
        if not total:
            return ZERO
        first, count = next(each for each in reversed(segments) if each[1])
        last = first + count - 1
        for place, row in zip(
            range(total - 1, 0, -1), range(last - 1, first - 1, -1), strict=False
        ):
            if place % self.spacing and row not in self._slots:
                break
            if place % self.spacing:
                self._drop([row])
        return self._slots[last]

    def paths(self, layout: TreeLayout, outputs: np.ndarray) -> StatePaths:
        """Slots for the states of a step's nodes: of the `outputs`, of a prefill chunk's last node
        and one in `spacing`, and of nodes whose child is not the next one."""
        before = [self.before(segments) for segments in layout.segments]
        kept = np.zeros(len(layout.rows), bool)
        kept[outputs] = True
        chunks = []
        for b, (first, last) in enumerate(pairwise(layout.first_node.tolist())):
            if last - first > 1 and not kept[first : last - 1].any():
                chunks.append(b)
                total = sum(count for _, count in layout.segments[b])
                ends = _multiples(total, total + last - first, self.spacing)
                kept[[first + end - total - 1 for end in ends]] = True
                kept[last - 1] = True
        owners = np.repeat(np.arange(len(before)), np.diff(layout.first_node))
        parents = layout.first_node[owners] + layout.parents
        parents = np.where(layout.parents < 0, -1 - owners, parents)
        kept[parents[(parents >= 0) & (parents != np.arange(len(parents)) - 1)]] = True
        nodes, slots = np.flatnonzero(kept), np.full(len(kept), -1)
        slots[nodes] = self.take(layout.rows, nodes)
        return StatePaths(layout.first_node, parents, np.array(before), slots, chunks)

    def take(self, rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """New slots of those `kept` among the `rows` that a step writes; the others have none."""
        self._drop(rows.tolist())
        missing = len(kept) - len(self._free)
        if missing > 0:
            self.reserve(len(self._users) + max(missing, len(self._users) // 2))
        slots = [self._free.pop() for _ in kept]
        for row, slot in zip(rows[kept].tolist(), slots, strict=True):
            self._users[slot], self._slots[row] = 1, slot
        return np.array(slots, np.int64)

    def reserve(self, slots: int) -> None:
        """Have so many slots; all states move if there are fewer."""
        known = len(self._users)
        count = slots - known
        if count <= 0:
            return
        for place, each in enumerate(self.states):  # one after the other: both take memory
            self.states[place] = torch.cat([each, each.new_zeros(count, *each.shape[1:])])
        self._users += [0] * count
        self._free += range(known + count - 1, known - 1, -1)

    def _drop(self, rows: Iterable[int]) -> None:
        for row in rows:
            slot = self._slots.pop(row, None)
            if slot is not None:
                self._users[slot] -= 1
                if not self._users[slot]:
                    self._free.append(slot)


class LazyStateStorage(StateStorage, LazyRowStorage):
    """States beside rows whose last moves are deferred. States seldom move: slots for the prefix
    cache and for the nodes of a step are reserved with the rows."""

    @property
    def memory(self) -> tuple[int, ...]:
        """See LazyRowStorage."""
        return *super().memory, len(self._users)

    def resize(self, rows: int) -> None:
        """See Storage."""
        super().resize(rows)
        nodes = min(STATES_BYTES // self.state_bytes, STEP_NODES)
        self.reserve(1 + rows // self.spacing + nodes)

    def follow(self, layout: TreeLayout, outputs: np.ndarray) -> Links:
        """See LazyRowStorage."""
        return self.paths(layout, outputs).links


def _multiples(first: int, last: int, spacing: int) -> list[int]:
    """Multiples of `spacing` behind `first`, up to `last`."""
    return list(range((first // spacing + 1) * spacing, last + 1, spacing))
