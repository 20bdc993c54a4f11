"""The work of one tree attention on a GPU, cut into tasks for a fixed grid of programs.

A task is a tile of query rows (nodes times the heads that share a key head) and a stretch of
keys. Long contexts are cut so that all multiprocessors have work, and none has it much longer than
others; what the tasks of a row find is merged afterwards. Sequences that stand side by side and
build on the same rows read those once. Everything that changes from step to step is in these
arrays: a captured graph reads them from device memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from graft.kernels.tree_layout import TreeLayout, are_chains

# Columns of a task: its first query row (node * group + member) and their number; the cache row
# of its first key, how many committed keys it sees, the position of the first; how many nodes of
# the sequence's tree follow them (0: not its business) and the first of those; whether the tree
# is a chain; which partial result it makes, and of how many (1: it makes the result itself).
ROW, ROWS, KEY, KEYS, POSITION, TREE, FIRST, CHAIN, PART, PARTS = range(10)
COLUMNS = 10
LEAST_KEYS = 256  # shorter stretches are not worth a merge
KEY_STEP = 128  # stretches are cut at multiples of this
FEW_ROWS = 16  # a task of no more query rows does little but read
LONG = 3072  # keys of such a task from which two, of half as many, are better for each place
WORD = 64
WITHOUT_GAPS = np.empty(0, np.int64)  # positions of segments that stand one behind the other


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The tasks of a step, and what nodes see of their own tree."""

    tile: int  # query rows of a task
    tasks: np.ndarray  # [T, COLUMNS] int32
    parts: np.ndarray  # [N] int32: partial results of a node; 1 where a task makes the result
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


def plan_guesses(
    segments: list[list[tuple[int, int]]],
    width: int,
    *,
    group: int,
    tile: int,
    tasks: int,
) -> TreePlan:
    """For `width` nodes of every sequence that see its committed rows (first row, rows) and, by
    bits that only the device knows, their own rows behind the last segment. Tasks whose nodes see
    rows of a tree above their own have a FIRST as many lower; those that see no tree a TREE of 0.
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
    return _long_ones_first(tasks[:count], stretch), parts


@njit(cache=True)
def _long_ones_first(tasks, stretch):
    """Short tasks find room beside the long ones, but not the other way round."""
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
    """[S] for every segment the last sequence that reads it with this one; -1 if one before this
    one reads it too. Only leading segments are read together, and the last is never shared."""
    last = np.empty(len(segments), np.int64)
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1]):
            last[s] = b
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1] - 1):
            if last[s] < b:
                continue
            place, other = s - first_segment[b], b + 1
            while other < len(first_segment) - 1 and _begin_alike(
                first_segment, segments, b, other, place
            ):
                last[first_segment[other] + place] = -1
                last[s] = other
                other += 1
    return last


@njit(cache=True)
def _begin_alike(first_segment, segments, b, other, place):
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
    """How many keys a task should see at most, and how many tasks there can be. Of long ones there
    may be no more than are `wanted`, or twice as many: one more takes as long as all of them
    again."""
    tiles = np.zeros(len(segments), np.int64)
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1]):
            if last_use[s] >= b:
                tiles[s] = -(-(first_node[last_use[s] + 1] - first_node[b]) * group // tile)
    work, places = int((tiles * segments[:, 1]).sum()), max(wanted, 1)
    if tile <= FEW_ROWS and work > LONG * places:
        places *= 2
    stretch = max(LEAST_KEYS, _up(work / places))
    while _long_tasks(segments, tiles, stretch) > places:
        stretch = _up(1.02 * stretch + 1)
    return stretch, work // stretch + int(tiles.sum())


@njit(cache=True)
def _long_tasks(segments, tiles, stretch):
    """How many tasks find no room beside others."""
    count = 0
    for s in range(len(segments)):
        keys = segments[s, 1]
        if not _is_short(keys, stretch):
            count += tiles[s] * -(-keys // stretch)
    return count


@njit(cache=True)
def _is_short(keys, stretch):
    """Whether a task finds room beside others."""
    return 2 * keys <= stretch


@njit(cache=True)
def _pieces(keys, own, stretch):
    """How many even pieces to cut a segment into, and their size; its own one is never left out."""
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
