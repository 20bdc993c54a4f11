"""What changes from round to round of a draft head, in one buffer that a captured graph reads.

The host writes into memory of its own, and one copy brings all of it to the device. Parts that a
round does not fill hold padding: tokens without rows, tasks without queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.heads.growth import Asked, Beam
from graft.kernels.draw_triton import noisy_rows
from graft.kernels.tree_attention_triton import tasks_wanted, tiles_of
from graft.kernels.tree_plan import COLUMNS, FIRST, TREE, TreePlan, plan_levels
from graft.models.heads.fused import Looking
from graft.models.heads.runner import HeadRunner
from graft.sampling import DRAW, Sampler, as_signed

NOWHERE = -(1 << 20)  # the row of nobody's guesses
LEAST_ROOM = 16  # tasks and partial results of a level
WIDE, NARROW, REAL = np.int64, np.int32, np.float32
TORCH = {WIDE: torch.int64, NARROW: torch.int32, REAL: torch.float32}

Place = tuple[str, int]  # whose rows, and how deep the guesses are that look at them
Part = tuple[type, tuple[int, ...]]  # kind and shape
Segments = list[list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Look:
    """Sizes of one attention: query rows of a task, tasks, partial results."""

    tile: int
    tasks: int
    parts: int

    @classmethod
    def of(cls, plan: TreePlan) -> "Look":
        """Few sizes for many plans: every other one is a graph to capture, and room that is left
        over costs next to nothing."""
        return cls(plan.tile, _rounded(len(plan.tasks)), _rounded(int(plan.parts.max())))


Planned = tuple[TreePlan, Look]


@dataclass(frozen=True, slots=True)
class RoundShape:
    """Rounds of one shape can be run by the same graph."""

    batch: int
    fresh: int  # places for new tokens
    beam: Beam
    noisy: bool
    looks: tuple[tuple[Place, Look], ...]


class Plans:
    """How every level of a round looks at the head's rows, and at the target's."""

    def __init__(self, runner: HeadRunner, asked: Sequence[Asked], beam: Beam) -> None:
        self._runner = runner
        self._made: dict[tuple, Planned] = {}  # levels mostly see the same rows
        self.by_place: dict[Place, tuple[Planned, int | None]] = {}  # and guesses above, if seen
        above = 0
        for depth, width in enumerate(beam.rows):
            own = [runner.seen(each.text.memory, depth) for each in asked]
            self.by_place["own", depth] = self._plan(own, width, 1), above if depth else None
            if runner.window is not None:
                known = [each.extent.segments for each in asked]
                layers = runner.config.cross_layers
                self.by_place["target", depth] = self._plan(known, width, layers), None
            above += width if depth else 0

    @property
    def looks(self) -> tuple[tuple[Place, Look], ...]:
        """Their sizes."""
        return tuple((place, look) for place, ((_, look), _) in self.by_place.items())

    def _plan(self, segments: Segments, width: int, layers: int) -> Planned:
        key = width, layers, tuple(map(tuple, segments))
        if key not in self._made:
            config, dtype = self._runner.config, self._runner.dtype
            group = config.heads // config.kv_heads
            tiles = tiles_of(dtype, config.head_size)
            tile = next((each for each in tiles if each >= width * group), tiles[-1])
            heads = layers * config.kv_heads
            tasks = tasks_wanted(tile, heads, config.head_size, dtype, self._runner.device)
            plan = plan_levels(segments, width, group=group, tile=tile, tasks=tasks)
            self._made[key] = plan, Look.of(plan)
        return self._made[key]


class RoundInputs:
    """See GraphInputs; also where the noise of sampled guesses comes from."""

    def __init__(self, runner: HeadRunner, shape: RoundShape) -> None:
        self._runner, self._looks, self._noisy = runner, dict(shape.looks), shape.noisy
        batch, fresh, device = shape.batch, shape.fresh, runner.device
        parts: dict[object, Part] = {
            **dict.fromkeys(("tokens", "positions", "rows"), (WIDE, (fresh,))),
            **dict.fromkeys(("last", "roots", "tree_rows"), (WIDE, (batch,))),
            "keys": (WIDE, (shape.beam.depth if shape.noisy else 0, batch)),
        }
        for place, look in shape.looks:
            parts["tasks", place] = NARROW, (look.tasks, COLUMNS)
            parts["parts", place] = NARROW, (batch * shape.beam.rows[place[1]],)
        parts["heat"] = REAL, (2, batch)  # 1 / temperature, share of the noise
        self._here, self._there = _Buffer(parts, torch.device("cpu")), _Buffer(parts, device)
        self.features = torch.zeros(fresh, runner.config.hidden, dtype=runner.dtype, device=device)
        self.tokens, self.positions, self.rows, self.last, self.roots, self.tree_rows = (
            self._there.parts[name]
            for name in ("tokens", "positions", "rows", "last", "roots", "tree_rows")
        )
        self._clear()
        self._send()

    def looking(self, whose: str, depth: int) -> Looking:
        """See GraphInputs."""
        place, there = (whose, depth), self._there.parts
        look = self._looks[place]
        return Looking(look.tile, there["tasks", place], there["parts", place], look.parts)

    def fill(self, asked: Sequence[Asked], rows: Sequence[np.ndarray], plans: Plans) -> None:
        """Say what is to be done, without waiting for the device. The texts' tokens go to these
        `rows`, and are counted as read already. The last round must be over: nobody reads the
        host's memory any more."""
        self._clear()
        here = self._here.numpy
        count = 0
        for i, (each, own) in enumerate(zip(asked, rows, strict=True)):
            text, first, last = each.text, count, count + len(each.text.tokens)
            end = text.memory.end
            here["tokens"][first:last], here["rows"][first:last] = text.tokens, own
            here["positions"][first:last] = range(end - len(text.tokens), end)
            here["last"][i], here["roots"][i] = last - 1, end - 1
            here["tree_rows"][i] = sum(self._runner.seen(text.memory, 0)[-1])
            count = last
        if self._runner.window is None:
            features = [each.text.features for each in asked]
            torch.cat(features, out=self.features[:count])
        for place, ((plan, _), above) in plans.by_place.items():
            tasks = here["tasks", place][: len(plan.tasks)]
            tasks[:] = plan.tasks
            if above is None:
                tasks[:, TREE] = 0
            else:
                tasks[:, FIRST] -= above
            here["parts", place][: len(plan.parts)] = plan.parts
        if self._noisy:
            self._heat([each.sampler for each in asked])
        self._send()

    def logits(self, outputs: Tensor, depth: int) -> Tensor:
        """What children of outputs [N, E] are chosen by. All guesses of a level have the same
        noise; filters are left out."""
        logits = self._runner.output(outputs)
        if not self._noisy:
            return logits
        there = self._there.parts
        return noisy_rows(logits, self._runner.tokens, there["keys"][depth], there["heat"])

    def _heat(self, samplers: Sequence[Sampler | None]) -> None:
        here = self._here.numpy
        for i, sampler in enumerate(samplers):
            if sampler is not None:
                here["keys"][:, i] = [
                    as_signed(sampler.key(depth, DRAW)) for depth in range(len(here["keys"]))
                ]
            sampled = sampler is not None and not sampler.params.greedy
            here["heat"][:, i] = (1 / sampler.params.temperature, 1.0) if sampled else (1.0, 0.0)

    def _clear(self) -> None:
        self._here.whole.zero_()
        self._here.numpy["rows"][:] = -1
        self._here.numpy["tree_rows"][:] = NOWHERE

    def _send(self) -> None:
        self._there.whole.copy_(self._here.whole, non_blocking=True)


class _Buffer:
    """Arrays of several kinds in one piece; those of 64 bits come first."""

    def __init__(self, parts: dict[object, Part], device: torch.device) -> None:
        sizes = {name: (kind, int(np.prod(shape))) for name, (kind, shape) in parts.items()}
        total = sum(size * (2 if kind is WIDE else 1) for kind, size in sizes.values())
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self.whole = torch.zeros(total, dtype=torch.int32, device=device, pin_memory=pinned)
        self.parts: dict[object, Tensor] = {}
        place = 0
        for name, (kind, shape) in parts.items():
            end = place + sizes[name][1] * (2 if kind is WIDE else 1)
            self.parts[name] = self.whole[place:end].view(TORCH[kind]).view(shape)
            place = end
        on_host = device.type == "cpu"
        self.numpy = {name: each.numpy() for name, each in self.parts.items()} if on_host else {}


def _rounded(number: int) -> int:
    """To the next power of four."""
    return max(LEAST_ROOM, 1 << 2 * -(-(number - 1).bit_length() // 2))
