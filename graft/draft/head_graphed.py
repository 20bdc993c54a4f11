"""A draft head's whole round on a GPU as one captured CUDA graph: all levels, no wait in between.

Launching the kernels of a level takes ten times as long as running them. A graph always runs on the
same addresses with the same sizes. So batches are filled up to the next of a few sizes, and what
changes (positions, noise, which rows are known) is copied into buffers first. How the known rows
are shared out among the device's programs is planned by the host, as for the target's steps
(`tree_plan.py`); which guesses see which, only the device knows.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.head_growth import Beam, LaunchedGrowth, Pool, as_pool, grow
from graft.kernels.tree_attention_triton import tasks_wanted, tiles_of
from graft.kernels.tree_plan import COLUMNS, TreePlan, plan_guesses
from graft.models.arena import Extent
from graft.models.capture import Pool as GraphPool
from graft.models.capture import captured, reason
from graft.models.head_fused import FusedHead, FusedRound, Looking
from graft.models.head_runner import TREE_ROWS, HeadRunner, Memory
from graft.sampling import DRAW, Sampler, as_signed, gumbel

log = logging.getLogger(__name__)

BATCHES = (1, 2, 4, 8, 16)
NOWHERE = -(1 << 20)  # the row of nobody's guesses

Place = tuple[str, int]  # whose rows, and how deep the guesses are that look at them


@dataclass(frozen=True, slots=True)
class Look:
    """Sizes of one attention: query rows of a task, tasks, partial results, nodes."""

    tile: int
    tasks: int
    parts: int
    nodes: int


@dataclass(frozen=True, slots=True)
class RoundShape:
    """Rounds of one shape can be run by the same graph."""

    batch: int
    beam: Beam
    noisy: bool
    looks: tuple[tuple[Place, Look], ...]


class GraphedGrowth:
    """See Growth."""

    def __init__(self, runner: HeadRunner) -> None:
        self.runner, self.capturing = runner, runner.device.type == "cuda"
        self._launched, self._fused = LaunchedGrowth(runner), FusedHead(runner)
        self._prepared: dict[RoundShape, _Prepared] = {}
        self._pool = None
        self._addresses: tuple[int, ...] = ()

    def __call__(
        self,
        memories: Sequence[Memory],
        extents: Sequence[Extent],
        samplers: Sequence[Sampler | None],
        beam: Beam,
    ) -> Pool:
        """See Growth. Penalties, and a caller's own changes, are left to the host."""
        crowded = len(memories) > BATCHES[-1] or sum(beam.rows[1:]) > TREE_ROWS
        if crowded or any(map(_is_special, samplers)):
            return self._launched(memories, extents, samplers, beam)
        self._keep_valid()
        batch = next(size for size in BATCHES if size >= len(memories))
        plans = self._plans(memories, extents, beam)
        looks = tuple(
            (place, _look(plan, batch * beam.rows[place[1]])) for place, plan in plans.items()
        )
        noisy = any(sampler is not None and not sampler.params.greedy for sampler in samplers)
        shape = RoundShape(batch, beam, noisy, looks)
        prepared = self._prepared.get(shape) or self._prepare(shape)
        prepared.inputs.fill(memories, samplers, plans)
        found = prepared.run()
        return as_pool(found[:, : len(memories)])

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

    def _plans(
        self, memories: Sequence[Memory], extents: Sequence[Extent], beam: Beam
    ) -> dict[Place, TreePlan]:
        """For every level how its nodes look at the head's rows, and at the target's."""
        plans: dict[Place, TreePlan] = {}
        above = 0
        for depth, width in enumerate(beam.rows):
            own = [self.runner.seen(memory, depth) for memory in memories]
            plans["own", depth] = self._plan(own, width, above if depth else None)
            if self.runner.window is not None:
                known = [extent.segments for extent in extents]
                plans["target", depth] = self._plan(known, width, None)
            above += width if depth else 0
        return plans

    def _plan(
        self, segments: list[list[tuple[int, int]]], width: int, above: int | None
    ) -> TreePlan:
        config, dtype = self.runner.config, self.runner.dtype
        group = config.heads // config.kv_heads
        tiles = tiles_of(dtype, config.head_size)
        tile = next((each for each in tiles if each >= width * group), tiles[-1])
        tasks = tasks_wanted(tile, config.kv_heads, config.head_size, dtype, self.runner.device)
        return plan_guesses(segments, width, above, group=group, tile=tile, tasks=tasks)

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
        self.inputs = _Inputs(fused.runner, shape)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: Tensor | None = None

    def run(self) -> Tensor:
        """What `grow` gives; good until the next run."""
        if self._graph is None:
            return self._launch()
        self._graph.replay()
        return self._found

    def capture(self, pool: GraphPool | None) -> GraphPool:
        """Make a graph; the pool its memory is in."""
        self._graph, self._found = captured(self._launch, self._fused.runner.device, pool)
        return self._graph.pool()

    def _launch(self) -> Tensor:
        return grow(FusedRound(self._fused, self.inputs), self.inputs.choose, self._beam)


class _Inputs:
    """All that changes from round to round, where a graph finds it; a Desk."""

    def __init__(self, runner: HeadRunner, shape: RoundShape) -> None:
        self._runner, self._looks = runner, dict(shape.looks)
        batch, device = shape.batch, runner.device
        hidden = runner.config.hidden
        self.inputs = torch.zeros(batch, 1, hidden, dtype=runner.dtype, device=device)
        self._places = _Twin((2, batch), torch.int64, device)  # positions of roots, rows of trees
        self._tasks = {
            place: _Twin((look.tasks, COLUMNS), torch.int32, device) for place, look in shape.looks
        }
        self._parts = {
            place: _Twin((look.nodes,), torch.int32, device) for place, look in shape.looks
        }
        self._keys = _Twin((shape.beam.depth, batch), torch.int64, device) if shape.noisy else None
        self._heat = _Twin((2, batch), torch.float32, device)  # 1 / temperature, share of the noise
        self._places.there[1] = NOWHERE

    @property
    def roots(self) -> Tensor:
        """See Desk."""
        return self._places.there[0, :, None]

    @property
    def tree_rows(self) -> Tensor:
        """See Desk."""
        return self._places.there[1, :, None]

    def looking(self, whose: str, depth: int) -> Looking:
        """See Desk."""
        look, place = self._looks[whose, depth], (whose, depth)
        tasks, parts = self._tasks[place].there, self._parts[place].there
        return Looking(look.tile, tasks, parts, look.parts)

    def fill(
        self,
        memories: Sequence[Memory],
        samplers: Sequence[Sampler | None],
        plans: dict[Place, TreePlan],
    ) -> None:
        """Say what is to be done, without waiting for the device."""
        self.inputs[: len(memories), 0] = torch.stack([memory.last for memory in memories])
        places = np.full((2, self.inputs.shape[0]), NOWHERE)
        places[0] = 0
        for i, memory in enumerate(memories):
            places[:, i] = memory.end - 1, sum(self._runner.seen(memory, 0)[-1])
        self._places.send(places)
        for place, plan in plans.items():
            self._tasks[place].send(plan.tasks)
            self._parts[place].send(plan.parts)
        if self._keys is not None:
            depths = range(len(self._keys.there))
            self._keys.send(np.array([[_key(each, d) for each in samplers] for d in depths]))
            self._heat.send(np.array([_heat(each) for each in samplers]).T)

    def choose(self, outputs: Tensor, depth: int, count: int) -> tuple[Tensor, Tensor]:
        """See Choose. All guesses of a level have the same noise; filters are left out."""
        logits = self._runner.logits(outputs)
        if self._keys is not None:
            noise = gumbel(self._keys.there[depth, :, None, None], self._runner.tokens)
            factor, share = self._heat.there[:, :, None, None]
            logits = factor * logits + share * noise.float()
        best = logits.log_softmax(-1).topk(min(count, logits.shape[-1]))
        return self._runner.tokens[best.indices], best.values


class _Twin:
    """A tensor on the device, and memory of the host that it is copied from."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.there = torch.zeros(shape, dtype=dtype, device=device)
        self._here = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")

    def send(self, values: np.ndarray) -> None:
        """Filled up with zeros. The last round is over, so nobody reads the host's memory."""
        here = self._here.numpy()
        here[...] = 0
        here[tuple(slice(size) for size in values.shape)] = values
        self.there.copy_(self._here, non_blocking=True)


def _is_special(sampler: Sampler | None) -> bool:
    return sampler is not None and (sampler.adjusts or not sampler.foreseeable)


def _key(sampler: Sampler | None, depth: int) -> int:
    return 0 if sampler is None else as_signed(sampler.key(depth, DRAW))


def _heat(sampler: Sampler | None) -> tuple[float, float]:
    """What the logits and the noise are multiplied by."""
    if sampler is None or sampler.params.greedy:
        return 1.0, 0.0
    return 1 / sampler.params.temperature, 1.0


def _look(plan: TreePlan, nodes: int) -> Look:
    """Few sizes for many plans: powers of two."""
    tasks, parts = _next_power(len(plan.tasks)), _next_power(int(plan.parts.max()))
    return Look(plan.tile, tasks, parts, nodes)


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length()
