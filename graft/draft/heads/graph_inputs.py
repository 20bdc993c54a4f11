"""The inputs of a head's captured graph, in one buffer.

The host writes into pinned memory, and one copy brings everything to the device. Unused parts hold
padding: tokens without rows, tasks without queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graft.draft.heads.growth import Beam, DraftInput
from graft.kernels.draw_triton import noisy_rows
from graft.kernels.level_attention_triton import PlacedLevel, tasks_wanted, tiles_of
from graft.kernels.level_plan import COLUMNS, FIRST, TREE, LevelPlan, plan_levels
from graft.models.heads.runner import HeadRunner
from graft.sampling import DRAW, Sampler, as_signed

PADDING_ROW = -(1 << 20)  # the first draft row of a padding sequence
MIN_SIZE = 16  # tasks and partial results of a level
TORCH_TYPES: dict[type, torch.dtype] = {
    np.int64: torch.int64,
    np.int32: torch.int32,
    np.float32: torch.float32,
}
INT64_NAMES = ("tokens", "positions", "rows", "last", "roots", "tree_rows")

PlanKey = tuple[str, int]  # whose rows ("own" or "target"), and the depth of the nodes
Part = tuple[type, tuple[int, ...]]  # numpy type and shape
Segments = list[list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one attention: query rows of a task, tasks, partial results."""

    tile: int
    tasks: int
    parts: int

    @classmethod
    def of(cls, plan: LevelPlan) -> "AttentionShape":
        """Rounded up, because each shape needs a graph and padding costs next to nothing."""
        return cls(plan.tile, _rounded(len(plan.tasks)), _rounded(int(plan.parts.max())))


Planned = tuple[LevelPlan, AttentionShape]


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Drafts of one shape share a graph."""

    batch: int
    new_tokens: int  # padded
    beam: Beam
    noisy: bool
    attention: tuple[tuple[PlanKey, AttentionShape], ...]


class Plans:
    """How every level of a draft attends to the head's rows, and to the target's."""

    def __init__(self, runner: HeadRunner, inputs: Sequence[DraftInput], beam: Beam) -> None:
        self._runner = runner
        self._made: dict[tuple, Planned] = {}  # most levels attend to the same rows
        # With the draft nodes above, or None if the level does not attend to any
        self.by_key: dict[PlanKey, tuple[Planned, int | None]] = {}
        above = 0
        for depth, width in enumerate(beam.rows):
            own = [runner.seen(each.text.memory, depth) for each in inputs]
            self.by_key["own", depth] = self._plan(own, width, 1), above if depth else None
            if runner.window is not None:
                target = [each.extent.segments for each in inputs]
                layers = runner.config.cross_layers
                self.by_key["target", depth] = self._plan(target, width, layers), None
            above += width if depth else 0

    @property
    def shapes(self) -> tuple[tuple[PlanKey, AttentionShape], ...]:
        """The plans' sizes."""
        return tuple((key, shape) for key, ((_, shape), _) in self.by_key.items())

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
            self._made[key] = plan, AttentionShape.of(plan)
        return self._made[key]


class DraftInputs:
    """See GraphInputs; also computes the logits with the sampler's noise."""

    def __init__(self, runner: HeadRunner, shape: DraftShape) -> None:
        self._runner, self._attention, self._noisy = runner, dict(shape.attention), shape.noisy
        batch, new_tokens, device = shape.batch, shape.new_tokens, runner.device
        parts: dict[object, Part] = {
            **dict.fromkeys(INT64_NAMES[:3], (np.int64, (new_tokens,))),
            **dict.fromkeys(INT64_NAMES[3:], (np.int64, (batch,))),
            "keys": (np.int64, (shape.beam.depth if shape.noisy else 0, batch)),
        }
        for key, attention in shape.attention:
            parts["tasks", key] = np.int32, (attention.tasks, COLUMNS)
            parts["parts", key] = np.int32, (batch * shape.beam.rows[key[1]],)
        parts["noise"] = np.float32, (2, batch)  # 1 / temperature, scale of the noise
        self._host, self._device = _Buffer(parts, torch.device("cpu")), _Buffer(parts, device)
        size = (new_tokens, runner.feature_size)
        self.features = torch.zeros(size, dtype=runner.dtype, device=device)
        self.tokens, self.positions, self.rows, self.last, self.roots, self.tree_rows = (
            self._device.parts[name] for name in INT64_NAMES
        )
        self._clear()
        self._upload()

    def attention(self, whose: str, depth: int) -> PlacedLevel:
        """See GraphInputs."""
        key, parts = (whose, depth), self._device.parts
        shape = self._attention[key]
        return PlacedLevel(shape.tile, parts["tasks", key], parts["parts", key], shape.parts)

    def fill(self, inputs: Sequence[DraftInput], rows: Sequence[np.ndarray], plans: Plans) -> None:
        """Write the inputs without waiting for the device. The texts' tokens go to these `rows`,
        and `memory.end` counts them already. The last run must have finished, because its copy
        reads the host's buffer."""
        self._clear()
        host, count = self._host.numpy, 0
        for i, (each, own) in enumerate(zip(inputs, rows, strict=True)):
            text, first, last = each.text, count, count + len(each.text.tokens)
            end = text.memory.end
            host["tokens"][first:last], host["rows"][first:last] = text.tokens, own
            host["positions"][first:last] = range(end - len(text.tokens), end)
            host["last"][i], host["roots"][i] = last - 1, end - 1
            host["tree_rows"][i] = sum(self._runner.seen(text.memory, 0)[-1])
            count = last
        if self._runner.window is None:
            features = (each.text.features for each in inputs)
            torch.cat([each for each in features if each is not None], out=self.features[:count])
        for key, ((plan, _), above) in plans.by_key.items():
            tasks = host["tasks", key][: len(plan.tasks)]
            tasks[:] = plan.tasks
            if above is None:
                tasks[:, TREE] = 0
            else:
                tasks[:, FIRST] -= above
            host["parts", key][: len(plan.parts)] = plan.parts
        if self._noisy:
            self._set_noise([each.sampler for each in inputs])
        self._upload()

    def logits(self, outputs: Tensor, depth: int) -> Tensor:
        """Logits of outputs [N, E] with noise, to choose children by. All nodes of a level share
        the noise; top-k and similar filters are not applied."""
        logits = self._runner.output(outputs)
        if not self._noisy:
            return logits
        parts = self._device.parts
        return noisy_rows(logits, self._runner.tokens, parts["keys"][depth], parts["noise"])

    def _set_noise(self, samplers: Sequence[Sampler | None]) -> None:
        host = self._host.numpy
        for i, sampler in enumerate(samplers):
            host["noise"][:, i] = 1.0, 0.0
            if sampler is None or sampler.params.greedy:
                continue
            keys = [as_signed(sampler.key(depth, DRAW)) for depth in range(len(host["keys"]))]
            host["keys"][:, i] = keys
            host["noise"][:, i] = 1 / sampler.params.temperature, 1.0

    def _clear(self) -> None:
        self._host.whole.zero_()
        self._host.numpy["rows"][:] = -1
        self._host.numpy["tree_rows"][:] = PADDING_ROW

    def _upload(self) -> None:
        self._device.whole.copy_(self._host.whole, non_blocking=True)


class _Buffer:
    """Arrays of several types in one piece; 64-bit ones first, for alignment."""

    def __init__(self, parts: dict[object, Part], device: torch.device) -> None:
        sizes = {
            name: int(np.prod(shape)) * np.dtype(kind).itemsize // 4
            for name, (kind, shape) in parts.items()
        }
        on_host = device.type == "cpu"
        pinned = on_host and torch.cuda.is_available()
        self.whole = torch.zeros(
            sum(sizes.values()), dtype=torch.int32, device=device, pin_memory=pinned
        )
        self.parts: dict[object, Tensor] = {}
        start = 0
        for name, (kind, shape) in parts.items():
            end = start + sizes[name]
            self.parts[name] = self.whole[start:end].view(TORCH_TYPES[kind]).view(shape)
            start = end
        self.numpy = {name: each.numpy() for name, each in self.parts.items()} if on_host else {}


def _rounded(number: int) -> int:
    """To the next power of four, at least MIN_SIZE."""
    return max(MIN_SIZE, 1 << 2 * -(-(number - 1).bit_length() // 2))
