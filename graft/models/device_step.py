"""All that a step tells a GPU, in one buffer: copied once, read by every kernel.

A captured graph always reads the same addresses, so the buffer's parts have room for the largest
step of their shape; what is left over holds padding: nodes without rows, tasks without queries.
"""

from dataclasses import dataclass

import numpy as np
import torch

from graft.kernels.tree_attention_triton import PlacedPlan
from graft.kernels.tree_layout import TreeLayout
from graft.kernels.tree_plan import COLUMNS, TreePlan

MOST_MOVES = 64


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step; steps of the same shape can be run by the same graph."""

    nodes: int
    tile: int  # query rows of an attention task
    tasks: int
    parts: int  # most partial results of a node
    words: int  # of 64 tree nodes each

    @property
    def sizes(self) -> dict[str, int]:
        """Integers of 64 bits in every part of the buffer, in their order."""
        halves = {"parts": self.nodes, "tasks": self.tasks * COLUMNS}
        return {
            **dict.fromkeys(("tokens", "positions", "rows"), self.nodes),
            "bits": self.nodes * self.words,
            "moves": 2 * MOST_MOVES,
            "moved": 1,
            **{name: -(-size // 2) for name, size in halves.items()},
        }


def fit(plan: TreePlan, nodes: int, *, tasks: int = 0, parts: int = 0) -> StepShape:
    """The shape of a step with this plan, with room for `nodes`, `tasks` and `parts` at least."""
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
        self.moves, self.moved = parts["moves"].view(MOST_MOVES, 2), parts["moved"]
        tasks = parts["tasks"].view(torch.int32)[: shape.tasks * COLUMNS]
        self.plan = PlacedPlan(
            shape.tile,
            tasks.view(shape.tasks, COLUMNS),
            parts["parts"].view(torch.int32)[: shape.nodes],
            parts["bits"].view(shape.nodes, shape.words),
            self.positions,
            shape.parts,
        )

    def clear(self) -> None:
        """Padding only: nothing to do."""
        self.buffer.copy_(torch.from_numpy(self._padding()))

    def fill(
        self, tokens: np.ndarray, layout: TreeLayout, plan: TreePlan, moves: np.ndarray
    ) -> None:
        """Say what is to be done, without waiting for the device."""
        on_gpu = self.buffer.device.type == "cuda"
        # The allocator of pinned memory hands it out again only after the copy has been made.
        host = torch.empty(self.buffer.shape, dtype=torch.int64, pin_memory=on_gpu)
        content = host.numpy()
        content[:] = self._padding()
        values = {
            "tokens": tokens,
            "positions": layout.positions,
            "rows": layout.rows,
            "bits": plan.bits.ravel(),
            "moves": moves.ravel(),
            "moved": np.array([len(moves)]),
            "parts": plan.parts,
            "tasks": plan.tasks.ravel(),
        }
        first = 0
        for name, size in self.shape.sizes.items():
            part = content[first : first + size].view(values[name].dtype)
            part[: len(values[name])] = values[name]
            first += size
        self.buffer.copy_(host, non_blocking=True)

    def _padding(self) -> np.ndarray:
        """The buffer of a step without nodes, without tasks and without moves."""
        padding = np.zeros(len(self.buffer), np.int64)
        padding[2 * self.shape.nodes : 3 * self.shape.nodes] = -1  # rows
        return padding
