"""The work of one tree attention on a GPU, divided into tasks for a fixed grid of programs.

A task is a tile of query rows (nodes times the heads that share a key head) and a range of keys.
Long contexts are divided so that all multiprocessors are busy for about the same time; the partial
results of a row are merged afterwards. Adjacent sequences with a common prefix load its rows once.
Everything that changes from step to step is in these arrays: a captured graph reads them from
device memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from graft.kernels.tree_layout import TreeLayout, are_chains

# Columns of a task: its first query row (node * group + member) and their number; the cache row of
# its first key, the number of committed keys, the position of the first; the number of tree nodes
# behind them (0: none in this task) and the first of those; whether the tree is a chain; the index
# of its partial result, and whether there are several (1: it writes the result itself).
ROW, ROWS, KEY, KEYS, POSITION, TREE, FIRST, CHAIN, PART, PARTS = range(10)
COLUMNS = 10
MIN_KEYS = 256  # a merge costs more than a shorter range saves
KEY_STEP = 128  # ranges are multiples of this
FEW_ROWS = 16  # a task with at most so many query rows is limited by memory bandwidth
LONG = 3072  # keys per program from which two shorter tasks are faster in such a case
WORD = 64
WITHOUT_GAPS = np.empty(0, np.int64)  # positions of consecutive segments


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The tasks of a step, and the visible nodes of its trees."""

    tile: int  # query rows of a task
    tasks: np.ndarray  # [T, COLUMNS] int32
    parts: np.ndarray  # [N] int32: partial results of a node; 1 where a task writes the result
    bits: np.ndarray  # [N, W] int64: ancestors of a node and itself; 0 where the tree is a chain


def tile_of(layout: TreeLayout, group: int, tiles: Sequence[int]) -> int:
    """The first of these tiles that holds the queries of any of the sequences, else the last."""
    rows = int((layout.first_node[1:] - layout.first_node[:-1]).max()) * group
    return next((tile for tile in tiles if tile >= rows), tiles[-1])


def plan_tree(layout: TreeLayout, *, group: int, tile: int, tasks: int) -> TreePlan:
    """About `tasks` tasks (for one key head) of `tile` rows each."""
    counts = [len(segments) for segments in layout.segments]
    segments = np.array([pair for each in layout.segments for pair in each], np.int64)
    starts = WITHOUT_GAPS
    if layout.starts is not None:
        starts = np.array([start for each in layout.starts for start in each], np.int64)
    table, parts, bits = _plan(
        layout.first_node, layout.parents, np.array(counts), segments, starts, group, tile, tasks
    )
    return TreePlan(tile, table, parts, bits)


def plan_levels(
    segments: list[list[tuple[int, int]]],
    width: int,
    *,
    group: int,
    tile: int,
    tasks: int,
) -> TreePlan:
    """The plan for `width` nodes of every sequence, whose tree bits only the device knows.

    The nodes see their sequence's committed rows (first row, rows) and rows behind the last
    segment. To see rows of earlier levels, lower FIRST by their number; to see none, set TREE to 0.
    """
    counts = np.array([len(each) for each in segments])
    rows = np.array([pair for each in segments for pair in each], np.int64)
    first_node = width * np.arange(len(segments) + 1)
    parents = np.tile(np.arange(-1, width - 1), len(segments))
    table, parts, bits = _plan(first_node, parents, counts, rows, WITHOUT_GAPS, group, tile, tasks)
    table[:, CHAIN] = 0
    return TreePlan(tile, table, parts, bits)


@njit(cache=True)
def _plan(first_node, parents, counts, segments, starts, group, tile, wanted):
    first_segment = np.zeros(len(counts) + 1, np.int64)
    first_segment[1:] = np.cumsum(counts)
    chains = are_chains(first_node, parents)
    tasks, parts = _cut(first_node, first_segment, segments, starts, chains, group, tile, wanted)
    return tasks, parts, _bits(first_node, parents, chains)


@njit(cache=True)
def _cut(first_node, first_segment, segments, starts, chains, group, tile, wanted):
    """The tasks [T, COLUMNS] and the parts [N]."""
    last_use = _last_use(first_segment, segments)
    stretch, capacity = _stretch(first_node, first_segment, segments, last_use, group, tile, wanted)
    tasks = np.empty((capacity, COLUMNS), np.int32)
    made = np.zeros(len(chains), np.int32)  # parts of each sequence so far
    count = 0
    for b in range(len(chains)):
        position = 0
        for s in range(first_segment[b], first_segment[b + 1]):
            key, keys = segments[s]
            if len(starts):
                position = starts[s]
            own = s + 1 == first_segment[b + 1]
            if last_use[s] >= b:
                end = last_use[s] + 1
                pieces, size = _pieces(keys, own, stretch)
                for piece in range(pieces):
                    tree = first_node[b + 1] - first_node[b] if own and piece + 1 == pieces else 0
                    for row in range(first_node[b] * group, first_node[end] * group, tile):
                        task = tasks[count]
                        task[ROW], task[ROWS] = row, min(tile, first_node[end] * group - row)
                        task[KEY], task[KEYS] = key + piece * size, min(size, keys - piece * size)
                        task[POSITION] = position + piece * size
                        task[TREE], task[FIRST], task[CHAIN] = tree, first_node[b], chains[b]
                        task[PART] = made[b] + piece
                        task[PARTS] = 1 if own and made[b] == 0 and pieces == 1 else 2
                        count += 1
                made[b:end] += pieces
            position += keys
    parts = np.empty(first_node[-1], np.int32)
    for b in range(len(chains)):
        parts[first_node[b] : first_node[b + 1]] = made[b]
    return _long_first(tasks[:count], stretch), parts


@njit(cache=True)
def _long_first(tasks, stretch):
    """Long tasks start first; short ones fill the gaps."""
    ordered = np.empty_like(tasks)
    place = 0
    for short in (False, True):
        for task in tasks:
            if _is_short(task[KEYS], stretch) == short:
                ordered[place] = task
                place += 1
    return ordered


@njit(cache=True)
def _last_use(first_segment, segments):
    """[S] for every segment the last sequence that shares its load; -1 if an earlier one loads it.

    Only leading segments are shared, never the last.
    """
    last = np.empty(len(segments), np.int64)
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1]):
            last[s] = b
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1] - 1):
            if last[s] < b:
                continue
            place, other = s - first_segment[b], b + 1
            while other < len(first_segment) - 1 and _share_prefix(
                first_segment, segments, b, other, place
            ):
                last[first_segment[other] + place] = -1
                last[s] = other
                other += 1
    return last


@njit(cache=True)
def _share_prefix(first_segment, segments, b, other, place):
    """Whether two sequences share their segments up to `place`."""
    if first_segment[other] + place + 1 >= first_segment[other + 1]:
        return False
    for s in range(place + 1):
        one, two = segments[first_segment[b] + s], segments[first_segment[other] + s]
        if one[0] != two[0] or one[1] != two[1]:
            return False
    return True


@njit(cache=True)
def _stretch(first_node, first_segment, segments, last_use, group, tile, wanted):
    """The maximum of keys per task, and the capacity for tasks.

    There are at most `wanted` long tasks, or twice as many: one more would take another wave.
    """
    tiles = np.zeros(len(segments), np.int64)
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1]):
            if last_use[s] >= b:
                tiles[s] = -(-(first_node[last_use[s] + 1] - first_node[b]) * group // tile)
    work, places = int((tiles * segments[:, 1]).sum()), max(wanted, 1)
    if tile <= FEW_ROWS and work > LONG * places:
        places *= 2
    stretch = max(MIN_KEYS, _up(work / places))
    while _long_tasks(segments, tiles, stretch) > places:
        stretch = _up(1.02 * stretch + 1)
    return stretch, work // stretch + int(tiles.sum())


@njit(cache=True)
def _long_tasks(segments, tiles, stretch):
    """The number of tasks that are not short."""
    count = 0
    for s in range(len(segments)):
        keys = segments[s, 1]
        if not _is_short(keys, stretch):
            count += tiles[s] * -(-keys // stretch)
    return count


@njit(cache=True)
def _is_short(keys, stretch):
    """Whether a task fits beside long ones."""
    return 2 * keys <= stretch


@njit(cache=True)
def _pieces(keys, own, stretch):
    """The number of even pieces of a segment, and their size; a sequence's own has at least one."""
    pieces = -(-keys // stretch)
    if pieces == 0:
        return (1 if own else 0), stretch
    size = _up(keys / pieces)
    return -(-keys // size), size


@njit(cache=True)
def _up(keys):
    """The next multiple of KEY_STEP."""
    return int(np.ceil(keys / KEY_STEP)) * KEY_STEP


@njit(cache=True)
def _bits(first_node, parents, chains):
    words = 1
    for b in range(len(chains)):
        if not chains[b]:
            words = max(words, -(-(first_node[b + 1] - first_node[b]) // WORD))
    bits = np.zeros((len(parents), words), np.int64)
    for b in range(len(chains)):
        base = first_node[b]
        for i in range(base, base if chains[b] else first_node[b + 1]):
            if parents[i] >= 0:
                bits[i] = bits[base + parents[i]]
            bits[i, (i - base) // WORD] |= np.int64(1) << ((i - base) % WORD)
    return bits
