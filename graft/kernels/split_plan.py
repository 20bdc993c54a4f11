"""The work of one attention on a GPU in splits of fixed borders: tasks, and what follows them.

A key's index is its place on the path of a node: committed keys first, then the node's ancestors
and the node itself. Keys are processed in blocks of 64 by index, blocks add up to splits, and
splits are merged in order. Their borders follow from the index alone (`split_blocks`), never
from the step, so a node's result has the same bits in any step: alone or in a batch, as a draft
or committed, in a prompt's chunk of any length.

What follows from the step is only who computes a split. Tasks compute the committed blocks of a
sequence for all of its nodes: the first task merges a run of splits from the start, the others
compute one split each. Per node, the last kernel merges these and adds the keys behind the last
whole block. Long chains (chunks of prompts) are computed by tasks alone, in a table of their own:
their tiles have many rows, those of decoding sequences few.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from graft.kernels.tree_layout import TreeLayout, are_chains

BLOCK = 64  # keys
MIN_SPLIT = 4  # blocks: merging two accumulators takes as long as a third of a block
SPLITS_PER_DOUBLING = 8  # from index 1024 on, a split is about an eighth of its index ...
SPLIT_BLOCKS = 4  # ... but at most so many blocks per key head: one long context fills the GPU
DIRECT_NODES = 64  # of a chain from which its tasks compute everything
UNCUT = 2  # stored splits where one task computes all of a context: merged ones, and the last
SHORT = 1  # blocks of context that the last kernel computes on the way

# Columns of a task: its first query row (node * group + member) and their number; its first block
# and the end of those that all rows see; where merged splits are stored and where the last split
# is (-1: nowhere); its first extent and their number; committed keys and first node of the
# sequence, and whether it computes everything; how many of the nodes before have no slot.
ROW, ROWS, FIRST, END, MERGED, LAST, EXTENT, EXTENTS, COMMITTED, NODE, DIRECT, SHIFT = range(12)
TASK_COLUMNS = 12
# Columns of a node that tasks do not compute alone; its place in this table is its slot, where its
# splits are stored. How many of them are merged or whole (-1: padding), where the last unfinished
# one is (-1: nowhere), its first block that no task computes; committed keys of its sequence, its
# own depth, the cache row of the sequence's first node, and whether the sequence is a chain; its
# extents; its number among all nodes.
SPLITS, OPEN, START, KEYS, DEPTH, TAIL, CHAIN, FROM, COUNT, NUMBER = range(10)
NODE_COLUMNS = 10
# Columns of an extent: its first index; row minus index, and position minus index, of its keys.
EXTENT_COLUMNS = 3
WITHOUT_GAPS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The tasks of a step and the tables they read."""

    tile: int  # query rows of a task
    tasks: np.ndarray  # [T, TASK_COLUMNS] int32
    chunks: np.ndarray  # [C, TASK_COLUMNS] int32: those of chunks of prompts, of the largest tile
    nodes: np.ndarray  # [S, NODE_COLUMNS] int32
    extents: np.ndarray  # [E, EXTENT_COLUMNS] int32
    paths: np.ndarray  # [S, W] int32: a node's ancestors and itself, by depth; W = 0 for chains
    parts: int  # stored splits per node

    @property
    def gathered(self) -> bool:
        """Whether the keys of a chunk of a prompt lie in several places."""
        return bool((self.chunks[:, EXTENTS] > 1).any())


@njit(cache=True)
def _most_nodes(first_node, chains):
    """Of a sequence that is no chunk of a prompt."""
    most = 0
    for b in range(len(chains)):
        if not _is_direct(first_node[b], first_node[b + 1], chains[b]):
            most = max(most, first_node[b + 1] - first_node[b])
    return most


def max_split(kv_heads: int) -> int:
    """Blocks of the longest split: a power of two."""
    return max(MIN_SPLIT, 1 << ((SPLIT_BLOCKS * kv_heads).bit_length() - 1))


def plan_splits(
    layout: TreeLayout, *, group: int, kv_heads: int, tiles: Sequence[int], tasks: int
) -> SplitPlan:
    """Tasks of one of the `tiles` query rows each, the first that holds the queries of any of the
    sequences, or the last; chunks of prompts have the last. `tasks` of them (for one key head) run
    at once."""
    chains = are_chains(layout.first_node, layout.parents)
    rows = _most_nodes(layout.first_node, chains) * group
    tile = next((each for each in tiles if each >= rows), tiles[-1])
    counts = np.array([len(segments) for segments in layout.segments])
    segments = np.array([pair for each in layout.segments for pair in each], np.int64)
    starts = WITHOUT_GAPS
    if layout.starts is not None:
        starts = np.array([start for each in layout.starts for start in each], np.int64)
    found = _plan(
        layout.first_node, layout.parents, chains, counts, segments, starts,
        (group, tile, tiles[-1], tasks, max_split(kv_heads)),
    )  # fmt: skip
    return SplitPlan(tile, *found)


@njit(cache=True)
def split_blocks(block, longest):
    """Blocks of the split that begins at or contains a block."""
    size = MIN_SPLIT
    while size < longest and 2 * SPLITS_PER_DOUBLING * size <= block:
        size *= 2
    return size


@njit(cache=True)
def border_before(block, longest):
    """The last border of splits at or before a block."""
    return block - block % split_blocks(block, longest)


@njit(cache=True)
def _plan(first_node, parents, chains, counts, segments, starts, limits):
    group, tile, chunk_tile, wanted, longest = limits
    first_segment = np.zeros(len(counts) + 1, np.int64)
    first_segment[1:] = np.cumsum(counts)
    extents, first_extent = _extents(first_segment, segments, starts)
    nodes, paths = _nodes(first_node, parents, chains, first_segment, segments, first_extent)
    shared = _shared(first_node, first_segment, segments, chains, longest)
    even, capacity = _even_share(first_node, chains, nodes, shared, group, tile, wanted, longest)
    tasks = np.zeros((capacity, TASK_COLUMNS), np.int32)
    chunks = np.zeros((len(parents) * group // chunk_tile + len(chains), TASK_COLUMNS), np.int32)
    count, chunk_count, parts, direct = 0, 0, 0, 0
    for b in range(len(chains)):
        begin, end = first_node[b], first_node[b + 1]
        if begin == end:
            continue
        task = np.zeros(TASK_COLUMNS, np.int32)
        task[EXTENT], task[EXTENTS] = first_extent[b], first_extent[b + 1] - first_extent[b]
        task[COMMITTED], task[NODE], task[SHIFT] = nodes[begin, KEYS], begin, direct
        if _is_direct(begin, end, chains[b]):
            direct += end - begin
            task[DIRECT] = 1
            _cover(task, 0, (nodes[begin, KEYS] + end - begin) // BLOCK, -1, -1)
            rows = begin * group, end * group, chunk_tile
            chunk_count = _add(chunks, chunk_count, task, rows, extents)
            continue
        if shared[b, 1] > b:  # computed for all who share it
            _cover(task, 0, shared[b, 0], 0, -1)
            last = first_node[shared[b, 1] + 1]
            count = _add(tasks, count, task, (begin * group, last * group, tile), extents)
        count, stored, unfinished = _add_splits(
            tasks, count, task, (begin * group, end * group, tile), extents,
            (shared[b, 0], nodes[begin, START], even, longest),
        )  # fmt: skip
        nodes[begin:end, SPLITS], nodes[begin:end, OPEN] = stored, unfinished
        parts = max(parts, stored + (1 if unfinished >= 0 else 0))
    tasks, chunks = _long_first(tasks[:count], wanted), _long_first(chunks[:chunk_count], wanted)
    slots = np.flatnonzero(nodes[:, SPLITS] >= 0)
    return tasks, chunks, nodes[slots], extents, paths[slots], parts


@njit(cache=True)
def _long_first(tasks, wanted):
    """Short tasks fill the gaps if not all run at once."""
    if len(tasks) <= wanted:
        return tasks
    return tasks[np.argsort(tasks[:, FIRST] - tasks[:, END], kind="mergesort")]


@njit(cache=True)
def _add_splits(tasks, count, task, rows, extents, limits):
    """Tasks for the blocks of one sequence from `place` on. Returns the new number of tasks, the
    number of stored splits, and where the unfinished one is (-1: nowhere)."""
    place, blocks, even, longest = limits
    stored, unfinished = (1 if place > 0 else 0), -1
    while place < blocks:
        first, merged, last = place, -1, -1
        if first == 0:
            place = _run(blocks, even, longest)
            if border_before(place, longest) > 0:
                merged, stored = 0, 1
            if border_before(place, longest) < place:
                last = unfinished = stored
        else:
            last, place = stored, first + split_blocks(first, longest)
            if place <= blocks:
                stored += 1
            else:
                place, unfinished = blocks, stored
        _cover(task, first, place, merged, last)
        count = _add(tasks, count, task, rows, extents)
    return count, stored, unfinished


@njit(cache=True)
def _cover(task, first, end, merged, last):
    task[FIRST], task[END], task[MERGED], task[LAST] = first, end, merged, last


@njit(cache=True)
def _add(tasks, count, task, rows, extents):
    """The same task for every tile of these query rows, the last tile first: in a chain it sees
    the most keys. Returns the new number of tasks."""
    row, last, tile = rows
    extent, extents_left = task[EXTENT], task[EXTENTS]
    if not task[DIRECT]:  # those of its blocks alone: a task in one place is faster
        while extents_left > 1 and extents[extent + extents_left - 1, 0] >= task[END] * BLOCK:
            extents_left -= 1
        while extents_left > 1 and extents[extent + 1, 0] <= task[FIRST] * BLOCK:
            extent, extents_left = extent + 1, extents_left - 1
    for start in range(row + (last - row - 1) // tile * tile, row - 1, -tile):
        tasks[count] = task
        tasks[count, ROW], tasks[count, ROWS] = start, min(tile, last - start)
        tasks[count, EXTENT], tasks[count, EXTENTS] = extent, extents_left
        count += 1
    return count


@njit(cache=True)
def _is_direct(begin, end, is_chain):
    return is_chain and end - begin >= DIRECT_NODES


@njit(cache=True)
def _run(blocks, even, longest):
    """The end of the first task of a sequence: all blocks, if that is about an even share; else a
    border after part of one, so that several tasks per processor even out."""
    if 4 * blocks <= 5 * even:
        return blocks
    run = max(even // 4, min(even // 2, longest), MIN_SPLIT)
    return border_before(min(run, blocks), longest) or min(MIN_SPLIT, blocks)


@njit(cache=True)
def _extents(first_segment, segments, starts):
    """The extents [E, EXTENT_COLUMNS], and the first [B + 1] of each sequence. Segments whose rows
    follow each other are one."""
    extents = np.zeros((len(segments), EXTENT_COLUMNS), np.int32)
    first = np.zeros(len(first_segment), np.int64)
    count = 0
    for b in range(len(first_segment) - 1):
        index = 0
        for s in range(first_segment[b], first_segment[b + 1]):
            row, keys = segments[s]
            shift = starts[s] - index if len(starts) else 0
            own = s + 1 == first_segment[b + 1]
            same = (
                count > first[b]
                and extents[count - 1, 1] == row - index
                and extents[count - 1, 2] == shift
            )
            if (keys > 0 or own) and not same:
                extents[count] = (index, row - index, shift)
                count += 1
            index += keys
        first[b + 1] = count
    return extents[:count].copy(), first


@njit(cache=True)
def _nodes(first_node, parents, chains, first_segment, segments, first_extent):
    """The table of nodes, as far as it does not depend on tasks, and the paths."""
    nodes = np.full((len(parents), NODE_COLUMNS), -1, np.int32)
    deepest = 0
    for b in range(len(chains)):
        begin, end = first_node[b], first_node[b + 1]
        keys = 0
        for s in range(first_segment[b], first_segment[b + 1]):
            keys += segments[s, 1]
        own = first_segment[b + 1] - 1
        blocks = keys // BLOCK
        for i in range(begin, end):
            depth = 0 if parents[i] < 0 else nodes[begin + parents[i], DEPTH] + 1
            nodes[i, START] = 0 if blocks <= SHORT else blocks
            nodes[i, KEYS], nodes[i, DEPTH] = keys, depth
            nodes[i, TAIL], nodes[i, CHAIN] = segments[own, 0] + segments[own, 1], chains[b]
            nodes[i, NUMBER] = i
            nodes[i, FROM], nodes[i, COUNT] = first_extent[b], first_extent[b + 1] - first_extent[b]
            if not chains[b]:
                deepest = max(deepest, depth + 1)
    paths = np.zeros((len(parents), deepest), np.int32)
    for b in range(len(chains)):
        begin, end = first_node[b], first_node[b + 1]
        for i in range(begin, begin if chains[b] else end):
            depth = nodes[i, DEPTH]
            for d in range(depth):
                paths[i, d] = paths[begin + parents[i], d]
            paths[i, depth] = i - begin
    return nodes, paths


@njit(cache=True)
def _shared(first_node, first_segment, segments, chains, longest):
    """[B, 2]: blocks of the prefix that a sequence shares with neighbours, to a border of splits;
    the last of these neighbours, for the first of them (else the sequence itself)."""
    sequences = len(chains)
    shared = np.zeros((sequences, 2), np.int64)
    shared[:, 1] = np.arange(sequences)
    b = 0
    while b < sequences:
        if _is_direct(first_node[b], first_node[b + 1], chains[b]):
            b += 1
            continue
        length = first_segment[b + 1] - first_segment[b] - 1
        last = b
        while last + 1 < sequences and not _is_direct(
            first_node[last + 1], first_node[last + 2], chains[last + 1]
        ):
            common = _common(first_segment, segments, b, last + 1)
            if min(length, common) == 0:
                break
            length = min(length, common)
            last += 1
        if last > b:
            keys = 0
            for s in range(first_segment[b], first_segment[b] + length):
                keys += segments[s, 1]
            border = border_before(keys // BLOCK, longest)
            if border > SHORT:
                shared[b : last + 1, 0] = border
                shared[b, 1] = last
        b = last + 1
    return shared


@njit(cache=True)
def _common(first_segment, segments, one, other):
    """Leading segments that two sequences share; never the last of either."""
    most = min(
        first_segment[one + 1] - first_segment[one], first_segment[other + 1] - first_segment[other]
    )
    for place in range(most - 1):
        a, b = segments[first_segment[one] + place], segments[first_segment[other] + place]
        if a[0] != b[0] or a[1] != b[1]:
            return place
    return max(most - 1, 0)


@njit(cache=True)
def _even_share(first_node, chains, nodes, shared, group, tile, wanted, longest):
    """Blocks per task if all had as many, and how many tasks there are at most, apart from chunks
    of prompts."""
    work, capacity = 0, 0
    for b in range(len(first_node) - 1):
        begin, end = first_node[b], first_node[b + 1]
        if begin == end or _is_direct(begin, end, chains[b]):
            continue
        tiles = -(-(end - begin) * group // tile)
        place, blocks = shared[b, 0], nodes[begin, START]
        work += tiles * (blocks - place)
        capacity += tiles
        if shared[b, 1] > b:
            common = -(-(first_node[shared[b, 1] + 1] - begin) * group // tile)
            work += common * place
            capacity += common
        while place < blocks:
            place += split_blocks(place, longest)
            capacity += tiles
    return -(-work // max(wanted, 1)), capacity
