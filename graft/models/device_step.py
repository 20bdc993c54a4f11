"""The inputs of a step on a GPU in one buffer: copied once, read by every kernel.

A captured graph always reads the same addresses, so each part of the buffer has the size of the
largest step of its shape. The rest is padding: nodes without rows, tasks without queries.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graft.kernels.decoder_triton import MAX_MOVES
from graft.kernels.tree_attention_triton import PlacedPlan
from graft.kernels.tree_layout import TreeLayout
from graft.kernels.tree_plan import COLUMNS, TreePlan


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step; steps of the same shape can be run by the same graph."""

    nodes: int
    tile: int  # query rows of an attention task
    tasks: int
    parts: int  # maximum of partial results of a node
    words: int  # of 64 tree nodes each

    @property
    def sizes(self) -> dict[str, int]:
        """Integers of 64 bits in every part of the buffer, in their order."""
        halves = {"parts": self.nodes, "tasks": self.tasks * COLUMNS}
        return {
            **dict.fromkeys(("tokens", "positions", "rows"), self.nodes),
            "bits": self.nodes * self.words,
            "moves": 2 * MAX_MOVES,
            "moved": 1,
            **{name: -(-size // 2) for name, size in halves.items()},
        }


def fit(plan: TreePlan, nodes: int, *, tasks: int = 0, parts: int = 0) -> StepShape:
    """The shape of a step with this plan, for at least so many nodes, tasks and parts."""
    return StepShape(
        max(nodes, len(plan.parts)),
        plan.tile,
        max(tasks, len(plan.tasks)),
        max(parts, int(plan.parts.max())),
        plan.bits.shape[1],
    )


class DeviceStep:
    """The buffer on a device and its parts."""

    def __init__(self, shape: StepShape, device: torch.device) -> None:
        self.shape = shape
        self.buffer = torch.empty(sum(shape.sizes.values()), dtype=torch.int64, device=device)
        parts = dict(zip(shape.sizes, self.buffer.split(list(shape.sizes.values())), strict=True))
        self.tokens, self.positions, self.rows = (
            parts[name] for name in ("tokens", "positions", "rows")
        )
        self.moves, self.moved = parts["moves"].view(MAX_MOVES, 2), parts["moved"]
        tasks = parts["tasks"].view(torch.int32)[: shape.tasks * COLUMNS]
        self.plan = PlacedPlan(
            shape.tile,
            tasks.view(shape.tasks, COLUMNS),
            parts["parts"].view(torch.int32)[: shape.nodes],
            parts["bits"].view(shape.nodes, shape.words),
            self.positions,
            shape.parts,
        )
        self._stages = itertools.cycle(_Stage(self.buffer) for _ in range(2))

    def clear(self) -> None:
        """Fill with padding: an empty step."""
        nothing = np.empty(0, np.int64)
        moves, tasks = np.empty((0, 2), np.int64), np.empty((0, COLUMNS), np.int32)
        words, parts = np.empty((0, self.shape.words), np.int64), np.empty(0, np.int32)
        self._send((nothing, nothing, nothing, words, moves, parts, tasks))

    def fill(
        self, tokens: np.ndarray | Tensor, layout: TreeLayout, plan: TreePlan, moves: np.ndarray
    ) -> None:
        """Send the step's inputs without waiting for the device. Tokens may be on the device
        already."""
        drawn = isinstance(tokens, Tensor)
        known = np.zeros(len(tokens), np.int64) if drawn else tokens
        self._send((known, layout.positions, layout.rows, plan.bits, moves, plan.parts, plan.tasks))
        if drawn:
            self.tokens[: len(tokens)] = tokens

    def _send(self, content: tuple[np.ndarray, ...]) -> None:
        stage = next(self._stages)
        stage.wait()
        _write(stage.whole, stage.halves, content, self.shape.nodes, self.shape.words)
        stage.copy_to(self.buffer)


class _Stage:
    """Host memory that the device copies from while the next step fills the other one."""

    def __init__(self, like: torch.Tensor) -> None:
        on_gpu = like.device.type == "cuda"
        self._memory = torch.empty(like.shape, dtype=like.dtype, pin_memory=on_gpu)
        self.whole = self._memory.numpy()
        self.halves = self.whole.view(np.int32)
        self._copied = torch.cuda.Event() if on_gpu else None

    def wait(self) -> None:
        """Wait for the last copy from it."""
        if self._copied:
            self._copied.synchronize()

    def copy_to(self, buffer: torch.Tensor) -> None:
        """Start the copy without waiting."""
        buffer.copy_(self._memory, non_blocking=True)
        if self._copied:
            self._copied.record()


@njit(cache=True)
def _write(whole, halves, content, nodes, words):  # noqa: ANN001, ANN202  (numba)
    """The parts in the order of `StepShape.sizes`, each filled up with padding."""
    tokens, positions, rows, bits, moves, parts, tasks = content
    whole[:] = 0
    count = len(tokens)
    whole[:count] = tokens
    whole[nodes : nodes + count] = positions
    whole[2 * nodes : 2 * nodes + count] = rows
    whole[2 * nodes + count : 3 * nodes] = -1
    place = 3 * nodes
    whole[place : place + bits.size] = bits.ravel()
    place += nodes * words
    whole[place : place + moves.size] = moves.ravel()
    place += 2 * MAX_MOVES
    whole[place] = len(moves)
    place = 2 * (place + 1)
    halves[place : place + count] = parts
    place += 2 * -(-nodes // 2)
    halves[place : place + tasks.size] = tasks.ravel()
