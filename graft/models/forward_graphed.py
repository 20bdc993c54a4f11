"""Steps on a GPU as captured CUDA graphs: one launch for a whole step, plain decoding included.

Launching the kernels of a step one by one takes several times as long as running them. A graph
runs them all, but always on the same addresses and with the same sizes. So a step is padded to
the next of a few sizes, whatever changes is read from one buffer, and a graph is captured when a
size is met for the first time. Large steps (prompts being read) are launched one by one: there
the kernels take long enough.
"""

import logging
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graft.kernels.decoder_triton import MOST_MOVES
from graft.kernels.tree_attention_triton import plan_for, tasks_wanted
from graft.kernels.tree_layout import TreeLayout
from graft.kernels.tree_plan import TreePlan
from graft.models.capture import captured, reason
from graft.models.device_step import DeviceStep, StepShape, fit
from graft.models.forward_triton import TritonLayers
from graft.sampling import upload

log = logging.getLogger(__name__)

# Five to sixteen rows cost the same: the matrix units take sixteen at a time.
BUCKETS = (1, 2, 4, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step of some shape: fill its buffer, then replay its graph, which makes its logits [N, V]
    and features [N, E]; without a graph its kernels are launched."""

    step: DeviceStep
    graph: torch.cuda.CUDAGraph | None = None
    outcome: tuple[Tensor, Tensor] | None = None


class GraphedForward:
    """Runs a network by graphs where it can; logits are good until the next run."""

    sizes = BUCKETS

    def __init__(self, layers: TritonLayers) -> None:
        self.layers, self.storage = layers, layers.storage
        self.device = layers.storage.kv.device
        self.asynchronous = self.capturing = self.device.type == "cuda"
        self.keeps_features = True  # they are made in any case
        self._features = layers.weights.head.new_empty(0)  # of the last run
        self._prepared: dict[StepShape, _Prepared] = {}
        self._pool = None
        self._keys = self.storage.kv[0, 0]  # of the first layer, where they lay at the last step

    @torch.inference_mode()
    def run(self, tokens: np.ndarray, layout: TreeLayout, outputs: np.ndarray) -> Tensor:
        """Write the nodes' keys and values, return logits [M, V] float32 of the nodes `outputs`."""
        self._keep_valid(int(layout.positions.max()) + 1)
        plan = plan_for(layout, self.layers.group, self._keys)
        count = len(tokens)
        wanted = None
        if len(outputs) < count:
            wanted = upload(torch.from_numpy(outputs), self.device)
        if count > BUCKETS[-1]:
            step = self._filled(tokens, layout, plan)
            logits, self._features = self.layers.compute(step, wanted)
            return logits
        shape = self._shape(plan)
        prepared = self._prepared.get(shape) or self._prepare(shape)
        prepared.step.fill(tokens, layout, plan, self.storage.take_moves(MOST_MOVES))
        logits, self._features = self._compute(prepared)
        return logits[:count] if wanted is None else logits[wanted]

    @torch.inference_mode()
    def queries(self, tokens: np.ndarray, layout: TreeLayout) -> Tensor:
        """See Forward. No graph gives them: the step's kernels are launched one by one."""
        self.layers.queries = found = []
        try:
            step = self._alone(tokens, layout)
            self.layers.compute(step, torch.tensor([len(tokens) - 1], device=self.device))
        finally:
            self.layers.queries = None
        return torch.stack(found)

    @torch.inference_mode()
    def run_first(self, tokens: np.ndarray, layout: TreeLayout, layers: int) -> None:
        """See Forward. Not captured: few layers of many tokens are mostly products."""
        self.layers.compute_first(self._alone(tokens, layout), layers)

    def frequencies(self) -> list[Tensor]:
        """See Forward."""
        return self.layers.shape.frequencies()

    def _alone(self, tokens: np.ndarray, layout: TreeLayout) -> DeviceStep:
        """A step whose kernels are launched without a graph."""
        self._keep_valid(int(layout.positions.max()) + 1)
        return self._filled(tokens, layout, plan_for(layout, self.layers.group, self._keys))

    def _filled(self, tokens: np.ndarray, layout: TreeLayout, plan: TreePlan) -> DeviceStep:
        step = DeviceStep(fit(plan, len(tokens)), self.device)
        step.fill(tokens, layout, plan, self.storage.take_moves(MOST_MOVES))
        return step

    @torch.inference_mode()
    def features(self, nodes: np.ndarray) -> Tensor:
        """See Forward."""
        first, count = (int(nodes[0]), len(nodes)) if len(nodes) else (0, 0)
        if not count or int(nodes[-1]) - first == count - 1:  # without a draft always: one launch
            return self._features[first : first + count].clone()
        return self._features[upload(torch.from_numpy(nodes), self.device)]

    def weighs_plainly(self, layer: int, tokens: int) -> bool:
        """See Forward."""
        return self.layers.weights.layers[layer].sees_all(tokens)

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """See Forward."""
        return F.embedding(tokens, self.layers.weights.embedding)

    def output_weight(self, tokens: Tensor | None) -> Tensor:
        """See Forward."""
        weight = self.layers.weights.head
        return weight if tokens is None else weight[tokens]

    def _shape(self, plan: TreePlan) -> StepShape:
        """Few shapes for many steps: the next of some numbers of nodes; room for the tasks of one
        sequence of any length, then for twice as many again and again."""
        nodes = next(size for size in BUCKETS if size >= len(plan.parts))
        kv_heads, _, size = self._keys.shape
        wanted = tasks_wanted(plan.tile, kv_heads, size, self._keys.dtype, self.device) + 8
        tasks = wanted
        while tasks < len(plan.tasks):
            tasks *= 2
        return fit(plan, nodes, tasks=tasks, parts=wanted)

    def _keep_valid(self, positions: int) -> None:
        """Forget the graphs if what they read lies elsewhere now."""
        kv, keys = self.storage.kv, self._keys
        moved = keys.data_ptr() != kv.data_ptr() or keys.shape[1] != kv.shape[3]
        if self.layers.reach(positions) or moved:
            self._prepared.clear()
            self._pool = None  # it went with the last graph
            self._keys = self.storage.kv[0, 0]

    def _compute(self, prepared: _Prepared) -> tuple[Tensor, Tensor]:
        if prepared.graph is None:
            return self.layers.compute(prepared.step, None)
        prepared.graph.replay()
        return prepared.outcome

    def _prepare(self, shape: StepShape) -> _Prepared:
        """The graph of a shape, captured over padding alone; none if it cannot be."""
        step = DeviceStep(shape, self.device)
        step.clear()
        prepared = _Prepared(step)
        if self.capturing:
            try:
                compute = partial(self.layers.compute, step, None)
                graph, outcome = captured(compute, self.device, self._pool)
            except RuntimeError as error:
                self.capturing = False
                why = reason(error)
                log.warning("steps are launched kernel by kernel, without CUDA graphs: %s", why)
            else:
                self._pool = graph.pool()
                prepared = _Prepared(step, graph, outcome)
        self._prepared[shape] = prepared
        return prepared
