"""The attention of one level of a head's draft on a GPU, divided into tasks.

A task is a tile of query rows (nodes times the heads that share a key head) and a range of keys.
Long contexts are divided so that all multiprocessors are busy for about the same time; the partial
results of a row are merged afterwards. Adjacent sequences with a common prefix load its rows once.
Everything that changes from draft to draft is in these arrays: a captured graph reads them from
device memory.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

# Columns of a task: its first query row (node * group + member) and their number; the cache row of
# its first key and the number of committed keys; the number of draft nodes behind them (0: none in
# this task) and the first of those; the index of its partial result, and whether there are several
# (1: it writes the result itself).
ROW, ROWS, KEY, KEYS, TREE, FIRST, PART, PARTS = range(8)
COLUMNS = 8
MIN_KEYS = 256  # a merge costs more than a shorter range saves
KEY_STEP = 128  # ranges are multiples of this
FEW_ROWS = 16  # a task with at most so many query rows is limited by memory bandwidth
LONG = 3072  # keys per program from which two shorter tasks are faster in such a case


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The tasks of a level."""

    tile: int  # query rows of a task
    tasks: np.ndarray  # [T, COLUMNS] int32
    parts: np.ndarray  # [N] int32: partial results of a node; 1 where a task writes the result


def plan_levels(
    segments: list[list[tuple[int, int]]], width: int, *, group: int, tile: int, tasks: int
) -> LevelPlan:
    """About `tasks` tasks (for one key head) for `width` nodes of every sequence.

    The nodes see their sequence's committed rows (first row, rows) and, of the rows behind the last
    segment, those that the device knows as their ancestors.
    """
    counts = np.array([len(each) for each in segments])
    rows = np.array([pair for each in segments for pair in each], np.int64)
    return LevelPlan(tile, *_plan(counts, rows, width, group, tile, tasks))


@njit(cache=True)
def _plan(counts, segments, width, group, tile, wanted):
    """The tasks [T, COLUMNS] and the parts [N]."""
    sequences = len(counts)
    first_segment = np.zeros(sequences + 1, np.int64)
    first_segment[1:] = np.cumsum(counts)
    last_use = _last_use(first_segment, segments)
    stretch, capacity = _stretch(first_segment, segments, last_use, width * group, tile, wanted)
    tasks = np.empty((capacity, COLUMNS), np.int32)
    made = np.zeros(sequences, np.int32)  # parts of each sequence so far
    count = 0
    for b in range(sequences):
        for s in range(first_segment[b], first_segment[b + 1]):
            if last_use[s] < b:
                continue
            key, keys = segments[s]
            own = s + 1 == first_segment[b + 1]
            end = last_use[s] + 1
            last_row = end * width * group
            pieces, size = _pieces(keys, own, stretch)
            for piece in range(pieces):
                for row in range(b * width * group, last_row, tile):
                    task = tasks[count]
                    task[ROW], task[ROWS] = row, min(tile, last_row - row)
                    task[KEY], task[KEYS] = key + piece * size, min(size, keys - piece * size)
                    task[TREE] = width if own and piece + 1 == pieces else 0
                    task[FIRST] = b * width
                    task[PART] = made[b] + piece
                    task[PARTS] = 1 if own and made[b] == 0 and pieces == 1 else 2
                    count += 1
            made[b:end] += pieces
    return _long_first(tasks[:count], stretch), np.repeat(made, width)


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
def _stretch(first_segment, segments, last_use, rows, tile, wanted):
    """The maximum of keys per task, and the capacity for tasks; `rows` are a sequence's queries.

    There are at most `wanted` long tasks, or twice as many: one more would take another wave.
    """
    tiles = np.zeros(len(segments), np.int64)
    for b in range(len(first_segment) - 1):
        for s in range(first_segment[b], first_segment[b + 1]):
            if last_use[s] >= b:
                tiles[s] = -(-(last_use[s] + 1 - b) * rows // tile)
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
