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
from graft.kernels.level_plan import COLUMNS, LevelPlan, plan_levels
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
    """Sizes of one table: nodes of a sequence, query rows of a task, tasks, partial results."""

    width: int
    tile: int
    tasks: int
    parts: int

    @classmethod
    def of(cls, plan: LevelPlan, width: int) -> "AttentionShape":
        """Rounded up, because each shape needs a graph and padding costs next to nothing."""
        parts = _rounded(int(plan.parts.max()))
        return cls(width, plan.tile, _rounded(len(plan.tasks)), parts)


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Drafts of one shape share a graph. `levels` say which of the tables each attention reads, and
    how many draft rows are above it (None: it sees none)."""

    batch: int
    new_tokens: int  # padded
    beam: Beam
    noisy: bool
    tables: tuple[AttentionShape, ...]
    levels: tuple[tuple[PlanKey, int, int | None], ...]


class Plans:
    """How every level of a draft attends to the head's rows, and to the target's."""

    def __init__(self, runner: HeadRunner, inputs: Sequence[DraftInput], beam: Beam) -> None:
        self._runner = runner
        self.tables: list[LevelPlan] = []  # most levels attend to the same rows
        self._known: list[tuple[int, int, Segments]] = []  # width, layers and rows of each
        levels: list[tuple[PlanKey, int, int | None]] = []
        above, layers = 0, runner.config.cross_layers
        for depth, width in enumerate(beam.rows):
            own = [runner.seen(each.text.memory, depth) for each in inputs]
            levels.append((("own", depth), self._table(width, 1, own), above if depth else None))
            if runner.window is not None:
                target = [each.extent.segments for each in inputs]
                levels.append((("target", depth), self._table(width, layers, target), None))
            above += width if depth else 0
        self.levels = tuple(levels)

    @property
    def shapes(self) -> tuple[AttentionShape, ...]:
        """The tables' sizes."""
        widths = (width for width, _, _ in self._known)
        return tuple(map(AttentionShape.of, self.tables, widths))

    def _table(self, width: int, layers: int, segments: Segments) -> int:
        """The number of the table for so many nodes, layers and these rows."""
        wanted = width, layers, segments
        if wanted in self._known:
            return self._known.index(wanted)
        config, dtype = self._runner.config, self._runner.dtype
        group = config.heads // config.kv_heads
        tiles = tiles_of(dtype, config.head_size)
        tile = next((each for each in tiles if each >= width * group), tiles[-1])
        heads = layers * config.kv_heads
        tasks = tasks_wanted(tile, heads, config.head_size, dtype, self._runner.device)
        self.tables.append(plan_levels(segments, width, group=group, tile=tile, tasks=tasks))
        self._known.append(wanted)
        return len(self.tables) - 1


class DraftInputs:
    """See GraphInputs; also has the sampler's noise."""

    def __init__(self, runner: HeadRunner, shape: DraftShape) -> None:
        self._runner, self._tables, self._noisy = runner, shape.tables, shape.noisy
        self._levels = {key: (table, above) for key, table, above in shape.levels}
        batch, new_tokens, device = shape.batch, shape.new_tokens, runner.device
        parts: dict[object, Part] = {
            **dict.fromkeys(INT64_NAMES[:3], (np.int64, (new_tokens,))),
            **dict.fromkeys(INT64_NAMES[3:], (np.int64, (batch,))),
            "keys": (np.int64, (shape.beam.depth if shape.noisy else 0, batch)),
        }
        for number, table in enumerate(shape.tables):
            parts["tasks", number] = np.int32, (table.tasks, COLUMNS)
            parts["parts", number] = np.int32, (batch * table.width,)
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
        number, above = self._levels[whose, depth]
        shape, parts = self._tables[number], self._device.parts
        tasks, counts = parts["tasks", number], parts["parts", number]
        return PlacedLevel(shape.tile, tasks, counts, shape.parts, above)

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
        for number, plan in enumerate(plans.tables):
            host["tasks", number][: len(plan.tasks)] = plan.tasks
            host["parts", number][: len(plan.parts)] = plan.parts
        if self._noisy:
            self._set_noise([each.sampler for each in inputs])
        self._upload()

    def with_noise(self, logits: Tensor, depth: int) -> Tensor:
        """Logits [N, n] to choose children by. All nodes of a level share the noise; top-k and
        similar filters are not applied."""
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
