"""A draft head's whole round on a GPU as one captured CUDA graph: what is new is read and all
levels are guessed without a wait in between.

Launching the kernels of a level takes ten times as long as running them. A graph always runs on the
same addresses with the same sizes. So batches are filled up to the next of a few sizes, and what
changes (tokens, positions, noise, which rows are known) is copied into a buffer first
(`graph_inputs.py`). How the known rows are shared out among the device's programs is planned by the
host, as for the target's steps (`tree_plan.py`); which guesses see which, only the device knows.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graft.draft.heads.graph_inputs import Plans, RoundInputs, RoundShape
from graft.draft.heads.growth import BATCHES, Asked, Beam, LaunchedGrowth, Pool, Waiting, with_roots
from graft.kernels.beam_triton import Nodes, Step, advance, best_children
from graft.models.capture import Pool as GraphPool
from graft.models.capture import captured, reason
from graft.models.heads.fused import FusedHead, FusedRound
from graft.models.heads.runner import TREE_ROWS, HeadRunner, Text

log = logging.getLogger(__name__)

FRESH = 16  # new tokens that a round has places for,
FRESH_OF_EACH = 8  # or so many for each sequence


class GraphedGrowth:
    """See Growth."""

    def __init__(self, runner: HeadRunner) -> None:
        self.runner, self.capturing = runner, runner.device.type == "cuda"
        self._launched, self._fused = LaunchedGrowth(runner), FusedHead(runner)
        self._prepared: dict[RoundShape, _Prepared] = {}
        self._pool = None
        self._addresses: tuple[int, ...] = ()

    def begin(self, asked: Sequence[Asked], beam: Beam) -> Waiting:
        """See Growth. Penalties, and a caller's own changes, are left to the host."""
        crowded = len(asked) > BATCHES[-1] or sum(beam.rows[1:]) > TREE_ROWS
        if crowded or any(_is_special(each) for each in asked):
            return self._launched.begin(asked, beam)
        batch = next(size for size in BATCHES if size >= len(asked))
        fresh = max(FRESH, FRESH_OF_EACH * batch)
        if sum(len(each.text.tokens) for each in asked) > fresh:
            asked = self._read_most(asked)
        rows = [self._take_rows(each.text) for each in asked]
        self._keep_valid()
        plans = Plans(self.runner, asked, beam)
        noisy = any(each.sampler is not None and not each.sampler.params.greedy for each in asked)
        shape = RoundShape(batch, fresh, beam, noisy, plans.looks)
        prepared = self._prepared.get(shape) or self._prepare(shape)
        prepared.inputs.fill(asked, rows, plans)
        return prepared.run(len(asked))

    def _read_most(self, asked: Sequence[Asked]) -> list[Asked]:
        """Read all but the last tokens, as if they were a prompt."""
        parted = [_parted(each.text) for each in asked]
        self._fused.read([before for before, _ in parted if before.tokens])
        return [replace(each, text=last) for each, (_, last) in zip(asked, parted, strict=True)]

    def _take_rows(self, text: Text) -> np.ndarray:
        """Where the text's tokens go; they count as read."""
        memory, count = text.memory, len(text.tokens)
        rows = self.runner.rows(text, memory.end + np.arange(count))
        memory.end += count
        memory.last = None  # only the device knows it
        return rows

    def _keep_valid(self) -> None:
        """Forget the graphs if the rows they read lie elsewhere now."""
        storages = [self.runner.storage]
        if self.runner.window is not None:
            storages.append(self.runner.model.arena.storage)
            storages[-1].settle()
        addresses = tuple(n for each in storages for n in (each.kv.data_ptr(), each.rows))
        if addresses != self._addresses:
            self._prepared.clear()
            self._pool, self._addresses = None, addresses

    def _prepare(self, shape: RoundShape) -> "_Prepared":
        """The graph of a shape, captured over nothing; none if it cannot be."""
        prepared = _Prepared(self._fused, shape)
        if self.capturing:
            try:
                self._pool = prepared.capture(self._pool)
            except RuntimeError as error:
                self.capturing = False
                why = reason(error)
                log.warning("the head is launched kernel by kernel, without a graph: %s", why)
        self._prepared[shape] = prepared
        return prepared


class _Prepared:
    """A round of some shape: fill its inputs, then run it."""

    def __init__(self, fused: FusedHead, shape: RoundShape) -> None:
        self._fused, self._beam = fused, shape.beam
        self.inputs = RoundInputs(fused.runner, shape)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: Tensor | None = None
        on_gpu = fused.runner.device.type == "cuda"
        size = (3, shape.batch, shape.beam.nodes)
        self._back = torch.empty(size, dtype=torch.int32, pin_memory=on_gpu)
        self._arrived = torch.cuda.Event() if on_gpu else None

    def run(self, sequences: int) -> Waiting:
        """Start; the trees of so many sequences are good until the next run."""
        if self._graph:
            self._graph.replay()
        else:
            self._found = self._launch()
        self._back.copy_(self._found, non_blocking=True)
        if self._arrived:
            self._arrived.record()

        def wait() -> Pool:
            if self._arrived:
                self._arrived.synchronize()
            tokens, parents, logs = self._back.numpy()[:, :sequences]
            return with_roots(tokens, parents, logs.view(np.float32))

        return wait

    def capture(self, pool: GraphPool | None) -> GraphPool:
        """Make a graph; the pool its memory is in."""
        self._graph, self._found = captured(self._launch, self._fused.runner.device, pool)
        return self._graph.pool()

    @torch.inference_mode()
    def _launch(self) -> Tensor:
        """[3, B, P] int32; see `advance`."""
        runner, inputs, beam = self._fused.runner, self.inputs, self._beam
        working, nodes = FusedRound(self._fused, inputs), Nodes.roots(inputs.roots)
        pool = torch.empty(self._back.shape, dtype=torch.int32, device=runner.device)
        first, above, outputs = 1, 0, working.root()
        for depth, (width, size) in enumerate(zip(beam.rows, beam.sizes, strict=True)):
            step = Step(beam.children, size, first, above, beam.keeps_all)
            found = best_children(inputs.logits(outputs, depth), beam.children)
            nodes = advance(nodes, found, step, runner.tokens, inputs.tree_rows, pool)
            first += width * beam.children if beam.keeps_all else size
            above += size
            if depth + 1 < beam.depth:
                outputs = working.level(nodes)
        return pool


def _parted(text: Text) -> tuple[Text, Text]:
    """All but the last token, and that one."""
    before, last = (
        replace(
            text,
            tokens=text.tokens[part],
            features=None if text.features is None else text.features[part],
        )
        for part in (slice(-1), slice(-1, None))
    )
    return before, last


def _is_special(asked: Asked) -> bool:
    return not asked.text.tokens or (asked.sampler is not None and not asked.sampler.stateless)
