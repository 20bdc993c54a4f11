"""Attention of a head's draft levels against brute force: interpreted here, compiled on a GPU."""

import heapq
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from daily import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_steps import SIZE, Step, brute_force, lay_out, random_step, random_tree

from graft.kernels.level_plan import (
    COLUMNS,
    FEW_ROWS,
    FIRST,
    KEY,
    KEYS,
    MIN_KEYS,
    PART,
    ROW,
    ROWS,
    TREE,
    LevelPlan,
    plan_levels,
)

pytest.importorskip("triton", reason="Triton is not installed")
from graft.kernels.level_attention_triton import PlacedLevel, attend  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("compiled there: pytest -m gpu", allow_module_level=True)

ABOVE, WIDTH = 7, 4  # draft nodes of earlier levels, and of this one


@dataclass
class Level:
    """The last WIDTH nodes of every tree of a step."""

    step: Step
    nodes: np.ndarray  # of the step
    bits: torch.Tensor
    plan: LevelPlan
    above: int | None = ABOVE

    @property
    def placed(self) -> PlacedLevel:
        tables = torch.from_numpy(self.plan.tasks), torch.from_numpy(self.plan.parts)
        return PlacedLevel(self.plan.tile, *tables, int(self.plan.parts.max()), self.above)

    def attend(self, dtype: torch.dtype = torch.float32) -> np.ndarray:
        step = self.step
        query = torch.from_numpy(step.query[self.nodes]).to(dtype)
        keys, values = (torch.from_numpy(x).to(dtype) for x in (step.keys, step.values))
        found = attend(query, keys, values, self.placed, self.bits, scale=0.3)
        return found.float().numpy()


def level_of(
    contexts: list[list[int]], heads: tuple[int, int], *, tile=16, tasks=8, size=SIZE, **options
) -> Level:
    """A level of a draft behind contexts of these segments."""
    rng = np.random.default_rng(len(contexts))
    trees = [random_tree(ABOVE + WIDTH, rng) for _ in contexts]
    layout = lay_out(list(zip(contexts, trees, strict=True)), **options)
    nodes = np.concatenate([first + ABOVE + np.arange(WIDTH) for first in layout.first_node[:-1]])
    ancestors = layout.ancestors[nodes, : ABOVE + WIDTH]
    bits = torch.from_numpy((ancestors * (1 << np.arange(ABOVE + WIDTH))).sum(1))
    group = heads[0] // heads[1]
    plan = plan_levels(layout.segments, WIDTH, group=group, tile=tile, tasks=tasks)
    return Level(random_step(layout, *heads, rng, size), nodes, bits, plan)


def assert_agrees(level: Level, tolerance: float = 3e-6, dtype=torch.float32) -> None:
    step = level.step
    numbers = (step.query, step.keys, step.values)
    rounded = Step(step.layout, *(torch.from_numpy(x).to(dtype).float().numpy() for x in numbers))
    expected = brute_force(rounded)[level.nodes]
    np.testing.assert_allclose(level.attend(dtype), expected, atol=tolerance)


@pytest.mark.parametrize("context", daily([0, 1, 31, 32, 255, 256, 257, 600], 0, 31, 257))
def test_level_at_every_boundary_of_parts(context):
    level = level_of([[context]], (2, 1), tasks=4)
    assert (level.placed.max_parts > 1) == (context > MIN_KEYS)
    assert_agrees(level)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1), (14, 2)])
def test_any_grouping_of_heads(heads, kv_heads):
    assert_agrees(level_of([[37], [300]], (heads, kv_heads), tile=32))


@pytest.mark.parametrize("size", [80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_any_head_size(size, dtype):
    level = level_of([[70]], (2, 1), size=size)
    assert_agrees(level, 3e-5 if dtype == torch.float32 else 8e-3, dtype)


def test_without_a_tree_only_committed_rows_are_seen():
    level = level_of([[40], [5]], (2, 1))
    level.above = None
    step, found = level.step, level.attend()
    for i, node in enumerate(level.nodes):
        ((row, count),) = step.layout.segments[i // WIDTH]
        keys, values = (x[0, row : row + count] for x in (step.keys, step.values))
        weights = np.exp(step.query[node] @ keys.T * 0.3)
        expected = weights @ values / weights.sum(1, keepdims=True)
        np.testing.assert_allclose(found[i], expected, atol=3e-6)


def test_shared_prefix_is_loaded_once():
    level = level_of([[600, 5, 10 + b] for b in range(3)], (2, 1), tasks=4, shared=2)
    tasks, ((row, _), *_) = level.plan.tasks, level.step.layout.segments[0]
    assert tasks[tasks[:, KEY] == row, ROWS].sum() == 2 * len(level.nodes)  # all rows, none twice
    assert_agrees(level)


def test_padding_changes_nothing_and_is_not_written():
    level = level_of([[500]], (2, 1))
    query, keys, values = (
        torch.from_numpy(x)
        for x in (level.step.query[level.nodes], level.step.keys, level.step.values)
    )
    plan = level.placed
    padded = PlacedLevel(
        plan.tile,
        torch.cat([plan.tasks, torch.zeros(7, COLUMNS, dtype=torch.int32)]),
        torch.cat([plan.parts, torch.zeros(3, dtype=torch.int32)]),
        plan.max_parts + 4,
        plan.above,
    )
    more = torch.cat([query, torch.full((3, 2, SIZE), float("nan"))])
    bits = torch.cat([level.bits, torch.zeros(3, dtype=torch.int64)])
    alone = attend(query, keys, values, plan, level.bits, scale=0.3)
    assert torch.equal(attend(more, keys, values, padded, bits, scale=0.3)[:WIDTH], alone)


# The plan


@settings(max_examples=40, deadline=None)
@given(
    contexts=st.lists(
        st.lists(st.integers(0, 3000), min_size=1, max_size=3), min_size=1, max_size=5
    ),
    shared=st.integers(0, 2),
    width=st.integers(1, 20),
    group=st.integers(1, 7),
    tasks=st.integers(1, 70),
    tile=st.sampled_from([16, 64, 128]),
)
def test_every_row_sees_every_key_once(contexts, shared, width, group, tasks, tile):  # noqa: PLR0913
    """The plan, by brute force: which row loads which keys as which part."""
    shared = min(shared, min(map(len, contexts)) - 1)
    tree = random_tree(width, np.random.default_rng(0))
    segments = lay_out(
        [(contexts[0][:shared] + each[shared:], tree) for each in contexts], shared
    ).segments
    plan = plan_levels(segments, width, group=group, tile=tile, tasks=tasks)
    for b, own in enumerate(segments):
        expected = np.concatenate([row + np.arange(count) for row, count in own])
        for row in (b * width * group, (b + 1) * width * group - 1):
            mine = [t for t in plan.tasks if t[ROW] <= row < t[ROW] + t[ROWS]]
            keys = [key for t in mine for key in range(t[KEY], t[KEY] + t[KEYS])]
            assert sorted(keys) == sorted(expected.tolist())
            assert sorted(t[PART] for t in mine) == list(range(plan.parts[row // group]))
            assert [(t[TREE], t[FIRST]) for t in mine if t[TREE]] == [(width, b * width)]
    waves = 2 if tile <= FEW_ROWS else 1
    tiles = -(-width * group // tile)
    assert len(plan.tasks) <= waves * tasks + tiles * sum(map(len, segments))


OVERHEAD = 128  # keys that could be read in the time that a task takes apart from reading


def time_taken(plan: LevelPlan, programs: int) -> int:
    """In keys, if so many tasks run at a time and the next begins where one ends."""
    free = [0] * programs
    for task in plan.tasks:
        heapq.heappushpop(free, free[0] + int(task[KEYS]) + OVERHEAD)
    return max(free)


def apart(contexts: list[list[int]]) -> list[list[tuple[int, int]]]:
    """Segments of sequences that share none."""
    return [[(b << 20 | s << 17, n) for s, n in enumerate(own)] for b, own in enumerate(contexts)]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.lists(st.integers(1, 40_000), min_size=1, max_size=2), min_size=1, max_size=32
    ),
    programs=st.sampled_from([16, 44, 66, 132]),
)
def test_tasks_are_balanced(lengths, programs):
    """A task too many would double it."""
    plan = plan_levels(apart(lengths), 1, group=6, tile=16, tasks=programs)
    even = sum(map(sum, lengths)) / programs
    assert time_taken(plan, programs) <= 1.5 * even + 2 * (MIN_KEYS + OVERHEAD)


@pytest.mark.parametrize("own", [0, 300])
@pytest.mark.parametrize(
    ("context", "tile", "pieces"), [(32_768, 64, 4), (32_768, 16, 8), (12_288, 16, 4)]
)
def test_sixteen_contexts_take_one_wave_and_very_long_ones_two(context, own, tile, pieces):
    """Two where tasks are limited by memory bandwidth. Tokens behind a cached prompt are extra."""
    lengths = [context, own] if own else [context]
    plan = plan_levels(apart([lengths] * 16), 1, group=6, tile=tile, tasks=66)
    assert plan.parts.tolist() == [pieces + (own > 0)] * 16
    assert (np.diff(plan.tasks[:, KEYS]) <= 0).all()  # the long ones first
