"""A step of recurrent layers by transformers' own scans, launched as they come.

A prefill chunk is scanned by the layer's own function from the state before it, a tree level by
level, each node from its parent's state (`state_storage.py`).
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from transformers.activations import ACT2FN

from graft.kernels.tree_layout import TreeLayout
from graft.models.recurrent import Convolution, Scan
from graft.models.state_storage import StateStorage
from graft.sampling import upload


class StateStep:
    """See `recurrent.RecurrentStep`. What all layers need is computed and uploaded once."""

    def __init__(self, storage: StateStorage, layout: TreeLayout, outputs: np.ndarray) -> None:
        paths = storage.paths(layout, outputs)
        self._storage, self._nodes = storage, len(paths.slots)
        self._parents, slots = paths.parents, paths.slots
        kept = np.flatnonzero(slots >= 0)
        # Of each chunk the slot before it, and its pieces with their last nodes' slots.
        self._chunks = []
        for b in paths.chunks:
            first, last = paths.first_node[b : b + 2]
            ends = kept[(kept >= first) & (kept < last)] + 1
            pieces = pairwise([int(first), *ends.tolist()])
            self._chunks.append(
                (int(paths.before[b]), [(start, end, int(slots[end - 1])) for start, end in pieces])
            )
        trees = np.setdiff1d(np.arange(len(paths.before)), paths.chunks)
        self._levels = [
            tuple(map(self._on_device, (nodes, above, stored, slots[nodes[stored]])))
            for nodes, above in _levels(self._parents, trees)
            for stored in [np.flatnonzero(slots[nodes] >= 0)]
        ]
        self._before = self._on_device(paths.before)
        self._kept, self._kept_slots = self._on_device(kept), self._on_device(slots[kept])
        self._windows: dict[int, Tensor] = {}  # by width

    def convolve(self, state: int, inputs: Tensor, convolution: Convolution) -> Tensor:
        """See RecurrentStep. Rounded as transformers rounds."""
        weight, bias, activation = convolution
        states = self._storage.states[state]  # [slots, C, W - 1]
        before = states[self._before].to(inputs.dtype)
        columns = torch.cat([before.transpose(0, 1).flatten(1), inputs], 1)
        width, taps = weight.shape[1], weight.float()
        if width not in self._windows:
            self._windows[width] = self._on_device(self._columns_of(width))
        places = self._windows[width]
        convolved = sum(
            columns[:, places[:, tap]].float() * taps[:, tap, None] for tap in range(width)
        )
        last = columns[:, places[self._kept, 1:]].transpose(0, 1)  # [n, C, W - 1]
        states[self._kept_slots] = last.to(states.dtype)
        if bias is not None:
            convolved = convolved + bias.float()[:, None]
        convolved = convolved.to(weight.dtype)
        if activation is not None:
            convolved = ACT2FN[activation](convolved)
        return convolved.to(inputs.dtype)

    def scan(self, state: int, inputs: list[Tensor], scan: Scan) -> Tensor:
        """See RecurrentStep."""
        states = self._storage.states[state]
        output: Tensor | None = None

        def put(where: slice | Tensor, part: Tensor) -> None:
            nonlocal output
            if output is None:
                output = part.new_empty(self._nodes, *part.shape[1:])
            output[where] = part.to(output.dtype)

        for slot, pieces in self._chunks:
            reached = states[slot : slot + 1]
            for first, last, stored in pieces:
                part, reached = scan.chunk([each[:, first:last] for each in inputs], reached)
                put(slice(first, last), part[0])
                states[stored] = reached[0].to(states.dtype)
        level = states[self._before]
        for nodes, above, stored, slots in self._levels:
            part, level = scan.token([each[0, nodes] for each in inputs], level[above])
            put(nodes, part)
            states[slots] = level[stored].to(states.dtype)
        assert output is not None
        return output[None]

    def _columns_of(self, width: int) -> np.ndarray:
        """[N, width]: columns of each node's last inputs, those of the sequences' states first."""
        past = width - 1
        states = past * len(self._before)
        last = np.where(self._parents < 0, -past * self._parents - 1, states + self._parents)
        earlier = np.concatenate([np.arange(states) - 1, last])  # the column before each
        places = np.empty((self._nodes, width), np.int64)
        places[:, past] = states + np.arange(self._nodes)
        for tap in range(past, 0, -1):
            places[:, tap - 1] = earlier[places[:, tap]]
        return places

    def _on_device(self, numbers: np.ndarray) -> Tensor:
        return upload(torch.from_numpy(numbers), self._storage.kv.device)


def _levels(parents: np.ndarray, trees: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Nodes of these sequences by depth, each with its parent's place in the level before, at first
    among the sequences; `parents` [N] are nodes, or -1 - sequence."""
    wanted = -1 - trees
    nodes = np.flatnonzero(np.isin(parents, wanted))
    above = -1 - parents[nodes]
    while len(nodes):
        yield nodes, above
        place = np.full(len(parents), -1)
        place[nodes] = np.arange(len(nodes))
        nodes = np.flatnonzero((parents >= 0) & (place[parents] >= 0))
        above = place[parents[nodes]]
