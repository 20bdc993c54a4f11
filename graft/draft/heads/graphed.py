"""A draft head's whole draft on a GPU as one captured CUDA graph, from the new tokens to the last
level, without the host in between.

Launching the kernels of a level takes ten times as long as running them. A graph always runs on the
same addresses with the same sizes. So batches are padded to one of a few sizes, and the inputs
(tokens, positions, noise, row numbers) are copied into a buffer first (`graph_inputs.py`). The host
plans how the cached rows are split among the device's programs (`level_plan.py`); which draft nodes
attend to which is known on the device only.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from graft.draft.heads.graph_inputs import DraftInputs, DraftShape, Plans
from graft.draft.heads.growth import (
    BATCHES,
    Beam,
    Candidates,
    DraftInput,
    LaunchedGrowth,
    PendingCandidates,
    joined,
    with_roots,
)
from graft.kernels.beam_triton import Nodes, Step, advance, best_children
from graft.models.capture import Pool, captured, reason
from graft.models.heads.fused import FusedHead, FusedRound
from graft.models.heads.runner import TREE_ROWS, HeadRunner, Text
from graft.models.storage import RowStorage

log = logging.getLogger(__name__)

NEW_TOKENS = 16  # that a graph takes at least,
NEW_TOKENS_EACH = 8  # or so many per sequence


class GraphedGrowth:
    """See Growth. The caches of the head and the target are RowStorages."""

    asynchronous: ClassVar[bool] = True

    def __init__(self, runner: HeadRunner) -> None:
        self.runner, self.capturing = runner, runner.device.type == "cuda"
        self._launched, self._fused = LaunchedGrowth(runner), FusedHead(runner)
        self._prepared: dict[DraftShape, _Prepared] = {}
        self._pool: Pool | None = None
        self._addresses: tuple[int, ...] = ()

    def begin(self, inputs: Sequence[DraftInput], beam: Beam) -> PendingCandidates:
        """See Growth. Samplers with penalties or a caller's own processing run without a graph.
        Batches larger than the largest graph are drafted in several runs."""
        if sum(beam.rows[1:]) > TREE_ROWS or any(_needs_host(each) for each in inputs):
            return self._launched.begin(inputs, beam)
        most = BATCHES[-1]
        *full, last = (inputs[i : i + most] for i in range(0, len(inputs), most))
        found = [self._begin(each, beam)() for each in full]  # runs of a shape share their buffers
        pending = self._begin(last, beam)
        return (lambda: joined([*found, pending()])) if found else pending

    def _begin(self, inputs: Sequence[DraftInput], beam: Beam) -> PendingCandidates:
        """For as many sequences as a graph has at most."""
        batch = next(size for size in BATCHES if size >= len(inputs))
        new_tokens = max(NEW_TOKENS, NEW_TOKENS_EACH * batch)
        if sum(len(each.text.tokens) for each in inputs) > new_tokens:
            inputs = self._process_all_but_last(inputs)
        rows = [self._take_rows(each.text) for each in inputs]
        self._drop_invalid_graphs()
        plans = Plans(self.runner, inputs, beam)
        noisy = any(each.sampler is not None and not each.sampler.params.greedy for each in inputs)
        shape = DraftShape(batch, new_tokens, beam, noisy, plans.shapes, plans.levels)
        prepared = self._prepared.get(shape) or self._prepare(shape)
        prepared.inputs.fill(inputs, rows, plans)
        return prepared.run(len(inputs))

    def _process_all_but_last(self, inputs: Sequence[DraftInput]) -> list[DraftInput]:
        """Process all tokens but the last of each, as in a prefill."""
        split = [_split_last(each.text) for each in inputs]
        self._fused.read([before for before, _ in split if before.tokens])
        return [replace(each, text=last) for each, (_, last) in zip(inputs, split, strict=True)]

    def _take_rows(self, text: Text) -> np.ndarray:
        """The rows for the text's tokens, which count as processed from now on."""
        memory, count = text.memory, len(text.tokens)
        rows = self.runner.rows(text, memory.end + np.arange(count))
        memory.end += count
        memory.last = None  # known on the device only
        return rows

    def _drop_invalid_graphs(self) -> None:
        """Drop all graphs if the caches they read have moved."""
        storages = [cast(RowStorage, self.runner.storage)]
        if self.runner.window is not None:
            storages.append(cast(RowStorage, self.runner.model.arena.storage))
            storages[-1].settle()
        addresses = tuple(n for each in storages for n in (each.kv.data_ptr(), each.rows))
        if addresses != self._addresses:
            self._prepared.clear()
            self._pool, self._addresses = None, addresses

    def _prepare(self, shape: DraftShape) -> "_Prepared":
        """Inputs of a shape and its graph, if one can be captured."""
        prepared = _Prepared(self._fused, shape)
        if self.capturing:
            try:
                self._pool = prepared.capture(self._pool)
            except RuntimeError as error:
                self.capturing = False
                why = reason(error)
                log.warning("the head runs without a CUDA graph, kernel by kernel: %s", why)
        self._prepared[shape] = prepared
        return prepared


class _Prepared:
    """A draft of one shape: fill its inputs, then run it."""

    def __init__(self, fused: FusedHead, shape: DraftShape) -> None:
        self._fused, self._beam = fused, shape.beam
        self.inputs = DraftInputs(fused.runner, shape)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: Tensor | None = None
        on_gpu = fused.runner.device.type == "cuda"
        size = (3, shape.batch, shape.beam.nodes)
        self._on_host = torch.empty(size, dtype=torch.int32, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None

    def run(self, sequences: int) -> PendingCandidates:
        """Start; the candidates are valid until the next run."""
        if self._graph:
            self._graph.replay()
        else:
            self._found = self._launch()
        assert self._found is not None
        self._on_host.copy_(self._found, non_blocking=True)
        if self._copied:
            self._copied.record()

        def wait() -> Candidates:
            if self._copied:
                self._copied.synchronize()
            tokens, parents, logs = self._on_host.numpy()[:, :sequences]
            return with_roots(tokens, parents, logs.view(np.float32))

        return wait

    def capture(self, pool: Pool | None) -> Pool:
        """Capture the graph and return its memory pool."""
        self._graph, self._found = captured(self._launch, self._fused.runner.device, pool)
        return self._graph.pool()

    @torch.inference_mode()
    def _launch(self) -> Tensor:
        """[3, B, P] int32; see `advance`."""
        runner, inputs, beam = self._fused.runner, self.inputs, self._beam
        working, nodes = FusedRound(self._fused, inputs), Nodes.roots(inputs.roots)
        found = torch.empty(self._on_host.shape, dtype=torch.int32, device=runner.device)
        first, above, outputs = 1, 0, working.root()
        for depth, (width, size) in enumerate(zip(beam.rows, beam.sizes, strict=True)):
            step = Step(beam.children, size, first, above, beam.keeps_all)
            logits = inputs.with_noise(self._fused.output(outputs), depth)
            children = best_children(logits, beam.children)
            nodes = advance(nodes, children, step, runner.tokens, inputs.tree_rows, found)
            first += width * beam.children if beam.keeps_all else size
            above += size
            if depth + 1 < beam.depth:
                outputs = working.level(nodes)
        return found


def _split_last(text: Text) -> tuple[Text, Text]:
    """All tokens but the last, and the last."""
    before, last = (
        replace(
            text,
            tokens=text.tokens[part],
            features=None if text.features is None else text.features[part],
        )
        for part in (slice(-1), slice(-1, None))
    )
    return before, last


def _needs_host(each: DraftInput) -> bool:
    return not each.text.tokens or (each.sampler is not None and not each.sampler.stateless)
