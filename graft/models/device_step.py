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
from graft.kernels.split_attention_triton import PlacedSplits
from graft.kernels.split_plan import EXTENT_COLUMNS, NODE_COLUMNS, TASK_COLUMNS, SplitPlan
from graft.kernels.tree_layout import TreeLayout
from graft.models.storage import NO_LINKS, Links


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step; steps of the same shape can be run by the same graph."""

    nodes: int
    tile: int  # query rows of an attention task
    tasks: int
    chunks: int  # tasks of chunks of prompts
    extents: int
    depth: int  # of the deepest tree; 0 for chains
    slots: int  # nodes that need more than tasks
    parts: int  # stored splits of each
    gathered: bool = False  # see SplitPlan
    linked: int = 0  # nodes that continue recurrent states

    @property
    def sizes(self) -> dict[str, int]:
        """Integers of 64 bits in every part of the buffer, in their order."""
        halves = {
            "links": 2 * self.linked,
            "walks": 2 * self.linked,
            "table": self.slots * NODE_COLUMNS,
            "paths": self.slots * self.depth,
            "extents": self.extents * EXTENT_COLUMNS,
            "tasks": self.tasks * TASK_COLUMNS,
            "chunks": self.chunks * TASK_COLUMNS,
        }
        return {
            **dict.fromkeys(("tokens", "positions", "rows"), self.nodes),
            "moves": 2 * MAX_MOVES,
            "moved": 1,
            "sequences": 1,
            **{name: -(-size // 2) for name, size in halves.items()},
        }


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
        self.sequences = parts["sequences"]  # those in `walks`

        def table(name: str, rows: int, columns: int) -> Tensor:
            return parts[name].view(torch.int32)[: rows * columns].view(rows, columns)

        self.links, self.walks = (table(name, shape.linked, 2) for name in ("links", "walks"))
        self.plan = PlacedSplits(
            shape.tile,
            table("tasks", shape.tasks, TASK_COLUMNS),
            table("chunks", shape.chunks, TASK_COLUMNS),
            table("table", shape.slots, NODE_COLUMNS),
            table("extents", shape.extents, EXTENT_COLUMNS),
            table("paths", shape.slots, shape.depth),
            self.positions,
            shape.parts,
            shape.gathered,
        )
        self._stages = itertools.cycle(_Stage(self.buffer) for _ in range(2))

    def clear(self) -> None:
        """Fill with padding: an empty step."""
        nothing, none = np.empty(0, np.int64), np.empty((0, 2), np.int64)
        columns = (NODE_COLUMNS, self.shape.depth, EXTENT_COLUMNS, TASK_COLUMNS, TASK_COLUMNS)
        tables = [np.empty((0, each), np.int32) for each in columns]
        self._send((nothing, nothing, nothing, none, *NO_LINKS, *tables))

    def fill(
        self,
        tokens: np.ndarray | Tensor,
        layout: TreeLayout,
        plan: SplitPlan,
        moves: np.ndarray,
        links: Links = NO_LINKS,
    ) -> None:
        """Send the step's inputs without waiting for the device. Tokens may be on the device
        already."""
        drawn = isinstance(tokens, Tensor)
        known = np.zeros(len(tokens), np.int64) if drawn else tokens
        tables = (plan.nodes, plan.paths, plan.extents, plan.tasks, plan.chunks)
        self._send((known, layout.positions, layout.rows, moves, *links, *tables))
        if drawn:
            self.tokens[: len(tokens)] = tokens

    def _send(self, content: tuple[np.ndarray, ...]) -> None:
        stage = next(self._stages)
        stage.wait()
        shape = self.shape
        sizes = (
            shape.nodes, shape.linked, shape.slots, shape.depth, shape.extents, shape.tasks,
        )  # fmt: skip
        _write(stage.whole, stage.halves, content, sizes)
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
def _write(whole, halves, content, sizes):  # noqa: ANN001, ANN202  (numba)
    """The parts in the order of `StepShape.sizes`, each filled up with padding."""
    tokens, positions, rows, moves, links, walks, table, paths, extents, tasks, chunks = content
    nodes, linked, slots, depth, capacity, max_tasks = sizes
    whole[:] = 0
    count = len(tokens)
    whole[:count] = tokens
    whole[nodes : nodes + count] = positions
    whole[2 * nodes : 2 * nodes + count] = rows
    whole[2 * nodes + count : 3 * nodes] = -1
    place = 3 * nodes
    whole[place : place + moves.size] = moves.ravel()
    place += 2 * MAX_MOVES
    whole[place] = len(moves)
    whole[place + 1] = len(walks)
    place = 2 * (place + 2)
    halves[place : place + links.size] = links.ravel()
    halves[place + links.size : place + 2 * linked] = -1
    place += 2 * linked
    halves[place : place + walks.size] = walks.ravel()
    place += 2 * linked
    halves[place : place + table.size] = table.ravel()
    for slot in range(len(table), slots):
        halves[place + slot * NODE_COLUMNS] = -1
    place += 2 * -(-slots * NODE_COLUMNS // 2)
    for slot in range(len(table) if paths.shape[1] else 0):
        for level in range(paths.shape[1]):
            halves[place + slot * depth + level] = paths[slot, level]
    place += 2 * -(-slots * depth // 2)
    halves[place : place + extents.size] = extents.ravel()
    place += 2 * -(-capacity * EXTENT_COLUMNS // 2)
    halves[place : place + tasks.size] = tasks.ravel()
    place += 2 * -(-max_tasks * TASK_COLUMNS // 2)
    halves[place : place + chunks.size] = chunks.ravel()
