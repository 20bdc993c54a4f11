"""Steps on a GPU as captured CUDA graphs: one launch for a whole step, plain decoding included.

Launching the kernels of a step one by one takes several times as long as running them. A graph
runs them all, but always on the same addresses and with the same sizes. So a step is padded to
the next of a few sizes, whatever changes is read from one buffer, and a graph is captured when a
size is met for the first time. Large steps (prefill) compute no logits in their graph: one
of thousands of nodes needs them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from graft.kernels.decoder_triton import MAX_MOVES
from graft.kernels.split_attention_triton import plan_for
from graft.kernels.split_plan import UNCUT, SplitPlan
from graft.kernels.tree_layout import TreeLayout
from graft.models.capture import captured, reason
from graft.models.device_step import DeviceStep, StepShape
from graft.models.storage import LazyRowStorage
from graft.sampling import upload

log = logging.getLogger(__name__)

# Five to sixteen rows cost the same: the matrix units take sixteen at a time.
BUCKETS = (1, 2, 4, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
# Chunks of prompts, alone or with drafts of other sequences: the library's products take 128 rows
# at a time, so padding costs them nothing.
PIECES = tuple(range(384, 2304 + 1, 128))
LARGE = 256  # steps beyond all sizes are padded to a multiple of it
# The least tables of a graph: attention tasks, stored splits, tree depth, extents of a sequence.
TASKS, PARTS, DEPTH, EXTENTS = 32, 16, 16, 4
# Of a chunk of a prompt beside other sequences: tasks, so that few graphs serve any number of them.
MIXED_TASKS = 1024


class Layers(Protocol):
    """A network that computes steps whose inputs are on the device, at the same addresses."""

    storage: LazyRowStorage
    queries: list[Tensor] | None  # of the layers so far, while they are wanted

    @property
    def group(self) -> int:
        """Query heads that share a key head."""

    @property
    def head(self) -> Tensor:
        """[V, E]: the weight of the output layer."""

    def reach(self, positions: int) -> bool:
        """Let tables cover so many positions; whether they were computed again."""

    def features(self, step: DeviceStep, kept: Mapping[int, Tensor]) -> Tensor:
        """Make the deferred moves, write keys and values, and return features [N, E], the inputs
        of the output layer; inputs of other layers go to `kept` [N, E]."""

    def logits(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """[M, V] float32 of features [M, E], in `out` if there is one."""

    def compute_first(self, step: DeviceStep, layers: int) -> None:
        """Make the deferred moves, write keys and values of the first `layers` alone."""

    def frequencies(self) -> list[Tensor]:
        """See Forward."""

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """See Forward."""

    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step of some shape: fill its buffer, then replay its graph, which makes its features
    [N, E] and, if it is no large one, its logits [N, V]; without a graph its kernels are launched.
    """

    step: DeviceStep
    graph: torch.cuda.CUDAGraph | None = None
    outcome: tuple[dict[int, Tensor], Tensor | None] | None = None


class GraphedForward:
    """Runs a network by graphs where it can; logits are good until the next run."""

    sizes = (*BUCKETS, *PIECES)

    def __init__(self, layers: Layers, *, exact: bool = False) -> None:
        self.layers, self.storage, self.exact = layers, layers.storage, exact
        self.frequencies, self.weighs_plainly = layers.frequencies, layers.weighs_plainly
        self.embed = torch.inference_mode()(layers.embed)
        self.device = layers.storage.kv.device
        self.asynchronous = self.capturing = self.device.type == "cuda"
        self._feature_layers: frozenset[int] = frozenset()
        self._kept: dict[int, Tensor] = {}  # features of the last run by layer; -1 is always there
        self._kept_rows: dict[int, Tensor] = {}  # where graphs put those of the other layers
        self._prepared: dict[StepShape, _Prepared] = {}
        self._pool = None
        self._logits: Tensor | None = None  # of any graph: good until the next run
        self._keys = self.storage.kv[0, 0]  # of the first layer, where they lay at the last step
        self._memory = self.storage.memory  # at the last step

    @torch.inference_mode()
    def run(self, tokens: np.ndarray | Tensor, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """See Forward."""
        links = self.storage.follow(layout, outputs)
        self._keep_valid(int(layout.positions.max()) + 1)
        plan = plan_for(layout, self.layers.group, self._keys)
        wanted = slice(len(tokens))
        if len(outputs) < len(tokens):
            wanted = upload(torch.from_numpy(outputs), self.device)
        shape = self._shape(len(tokens), plan)
        prepared = self._prepared.get(shape) or self._prepare(shape)
        prepared.step.fill(tokens, layout, plan, self.storage.take_moves(MAX_MOVES), links)
        self._kept, logits = self._compute(prepared)
        return self.layers.logits(self._kept[-1][wanted]) if logits is None else logits[wanted]

    @property
    def feature_layers(self) -> frozenset[int]:
        """See Forward. Graphs that keep other layers are dropped."""
        return self._feature_layers

    @feature_layers.setter
    def feature_layers(self, layers: frozenset[int]) -> None:
        self._feature_layers, inner = layers, sorted(layers - {-1})
        if inner != [*self._kept_rows]:
            self._drop_graphs()
            weight = self.layers.head
            self._kept_rows = {i: weight.new_empty(PIECES[-1], weight.shape[1]) for i in inner}

    @torch.inference_mode()
    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> Tensor:
        """See Forward. No graph gives them: the step's kernels are launched one by one."""
        self.layers.queries = found = []
        try:
            self.layers.features(self._alone(tokens, layout), {})
        finally:
            self.layers.queries = None
        return torch.stack(found)[:, :, : len(tokens)]

    @torch.inference_mode()
    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """See Forward. Not captured: few layers of many tokens are mostly products."""
        self.layers.compute_first(self._alone(tokens, layout), layers)

    def _alone(self, tokens: np.ndarray, layout: TreeLayout) -> DeviceStep:
        """A step whose kernels are launched without a graph; it keeps its last state."""
        links = self.storage.follow(layout, np.array([len(tokens) - 1]))
        self._keep_valid(int(layout.positions.max()) + 1)
        plan = plan_for(layout, self.layers.group, self._keys)
        step = DeviceStep(self._shape(len(tokens), plan), self.device)
        step.fill(tokens, layout, plan, self.storage.take_moves(MAX_MOVES), links)
        return step

    @torch.inference_mode()
    def features(self, nodes: np.ndarray, layers: Sequence[int]) -> Tensor:
        """See Forward."""
        first, count = (int(nodes[0]), len(nodes)) if len(nodes) else (0, 0)
        rows: slice | Tensor = slice(first, first + count)
        if count and int(nodes[-1]) - first != count - 1:  # never without a draft: fewer launches
            rows = upload(torch.from_numpy(nodes), self.device)
        return torch.cat([self._kept[layer][rows] for layer in layers], -1)

    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """See Forward."""
        weight = self.layers.head
        return weight if tokens is None else weight[tokens]

    def _shape(self, count: int, plan: SplitPlan) -> StepShape:
        """Few shapes for many steps: the next of some numbers of nodes, and tables of sizes that
        double."""
        slots, depth = len(plan.nodes), plan.paths.shape[1]
        large = -(-count // LARGE) * LARGE
        nodes = next((size for size in self.sizes if size >= count), large)
        few = min(nodes, BUCKETS[-1])
        is_mixed = nodes > few and slots > 0
        return StepShape(
            nodes,
            plan.tile,
            _doubled(MIXED_TASKS if is_mixed else TASKS, len(plan.tasks)) if slots else 0,
            _doubled(TASKS, len(plan.chunks)) if len(plan.chunks) else 0,
            _doubled(EXTENTS * few, len(plan.extents)),
            _doubled(DEPTH, depth) if depth or nodes == few else 0,
            _doubled(few, slots) if slots else 0,
            _doubled(PARTS, plan.parts) if plan.parts > UNCUT or is_mixed else UNCUT,
            plan.gathered,
            nodes if self.storage.state_bytes else 0,
        )

    def _keep_valid(self, positions: int) -> None:
        """Forget the graphs if what they read lies elsewhere now."""
        memory = self.storage.memory
        if self.layers.reach(positions) or memory != self._memory:
            self._drop_graphs()
            self._keys, self._memory = self.storage.kv[0, 0], memory

    def _drop_graphs(self) -> None:
        self._prepared.clear()
        self._pool = None  # it went with the last graph

    def _compute(self, prepared: _Prepared) -> tuple[dict[int, Tensor], Tensor | None]:
        if prepared.graph is None:
            return self._launch(prepared.step)
        prepared.graph.replay()
        return prepared.outcome

    def _launch(self, step: DeviceStep) -> tuple[dict[int, Tensor], Tensor | None]:
        """Features by layer and, if the step is no large one, logits of all its nodes."""
        count = len(step.tokens)
        kept = {
            layer: rows[:count] if count <= len(rows) else rows.new_empty(count, rows.shape[1])
            for layer, rows in self._kept_rows.items()
        }
        kept[-1] = self.layers.features(step, kept)
        if count > BUCKETS[-1]:
            return kept, None
        return kept, self.layers.logits(kept[-1], self._place(count))

    def _place(self, count: int) -> Tensor:
        """Where the logits of so many nodes go: the same memory for the graphs of all shapes."""
        if self._logits is None:
            head = self.layers.head
            self._logits = head.new_empty((BUCKETS[-1], len(head)), dtype=torch.float32)
        return self._logits[:count]

    def _prepare(self, shape: StepShape) -> _Prepared:
        """The graph of a shape, captured over padding alone; none if it cannot be."""
        step = DeviceStep(shape, self.device)
        step.clear()
        prepared = _Prepared(step)
        if self.capturing and shape.nodes in self.sizes:
            try:
                graph, outcome = captured(partial(self._launch, step), self.device, self._pool)
            except RuntimeError as error:
                self.capturing = False
                why = reason(error)
                log.warning("steps are launched kernel by kernel, without CUDA graphs: %s", why)
            else:
                self._pool = graph.pool()
                prepared = _Prepared(step, graph, outcome)
        self._prepared[shape] = prepared
        return prepared


def _doubled(room: int, wanted: int) -> int:
    """So much room, or twice as much again and again."""
    while room < wanted:
        room *= 2
    return room
