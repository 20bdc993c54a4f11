"""Seconds of a step on this machine, by number of nodes and length of context.

Measured once per model, dtype, device and versions, and kept on disk. Only ratios between entries
matter. A checked-in table (`reference_costs.json`) replaces it where results must not depend on
the machine, as in the tests.
"""

import hashlib
import json
import os
import platform
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from graft.errors import InputError
from graft.home import atomic_file, home
from graft.models.arena import Extent, OutOfRowsError
from graft.models.language_model import LanguageModel
from graft.tree.draft_tree import DraftTree, chain, from_paths

NODES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
LENGTHS = (128, 2048)
MAX_TREE = 96  # nodes; larger steps are prefill, with logits of the last token alone
GPU_NODES = (*NODES, MAX_TREE, 512, 2048)
GPU_LENGTHS = (128, 2048, 16384, 65536)  # many nodes are free at short contexts, not at long ones
SCATTER = 7919  # between the tokens of a timed step, so that they are different ones
MANY, FEW = 16, (1, 2, 4, 8, 16)  # sequences at once, and the nodes of each
CHOSEN = "GRAFT_COSTS"  # the environment variable that names a table
REFERENCE = Path(__file__).with_name("reference_costs.json")
MAX_CACHED = 1024  # results of `beyond`
_SLOW = 0.3  # seconds of a step from which on fewer sizes are measured, once each
_REPEATS, _MORE_REPEATS = 3, 12  # of all sizes; of the short steps of an asynchronous device


@dataclass(frozen=True)
class StepCosts:
    """seconds[i, j] of a step with nodes[j] nodes on top of lengths[i] committed tokens."""

    lengths: tuple[int, ...]
    nodes: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, length: int) -> np.ndarray:
        """[most nodes + 1] seconds of a step with n nodes, entry 0 unused, at this context.

        Linear between the measured lengths and beyond them; never below the shortest measured.
        """
        return self.beyond(length, 0, self.nodes[-1])

    def step(self, length: int, rows: int, sequences: int = 1) -> float:
        """Seconds of a step with so many rows, of so many sequences of this length."""
        return float(self.beyond(length, rows, 0, sequences)[0])

    def beyond(self, length: int, rows: int, nodes: int, sequences: int = 1) -> np.ndarray:
        """[nodes + 1] seconds of a step with `rows` rows and 0, 1, ... `nodes` more.

        Past the largest measured step every row costs as much as the last measured ones. Several
        `sequences` share the weights, but each has its own context: together they cost as much as
        one context of their total length. The result is cached: do not change it.
        """
        return self._cached(length, rows, nodes, sequences)

    def _beyond(self, length: int, rows: int, nodes: int, sequences: int) -> np.ndarray:
        lines, shortest = self._lines(rows + nodes + 1), self.lengths[0]
        length = shortest + sequences * max(length - shortest, 0)
        i = min(bisect_right(self.lengths, length), len(self.lengths) - 1)
        share = 0.0  # of the way from one measured length to the next
        if i and length > shortest:
            share = (length - self.lengths[i - 1]) / (self.lengths[i] - self.lengths[i - 1])
        return _beyond(lines, max(i - 1, 0), i, share, rows, nodes, sequences)

    def _lines(self, count: int) -> np.ndarray:
        """[lengths, at least count]: seconds by nodes at the measured lengths."""
        if count > self._longest[0].shape[1]:
            self._longest[0] = _extended(self._measured, 2 * count)
        return self._longest[0]

    @cached_property
    def _cached(self) -> Callable[[int, int, int, int], np.ndarray]:
        """`beyond` is called for every step, mostly with the same arguments."""
        return lru_cache(MAX_CACHED)(self._beyond)

    @cached_property
    def _longest(self) -> list[np.ndarray]:
        """The lines, extended to the largest size so far."""
        return [self._measured]

    @cached_property
    def _measured(self) -> np.ndarray:
        """The lines by interpolation, made monotone: fewer nodes or a shorter context never cost
        more. Where they did, the measurement was disturbed."""
        every = np.arange(self.nodes[-1] + 1)
        rows = np.array([np.interp(every, self.nodes, row) for row in self.seconds])
        falling = np.minimum.accumulate(np.minimum.accumulate(rows[::-1, ::-1], 1), 0)
        return falling[::-1, ::-1].copy()  # laid out as `_beyond` is compiled for

    def _is_sound(self) -> bool:
        """A full table of positive times, its sizes ascending."""
        shape = (len(self.lengths), len(self.nodes))
        return (
            shape[0] > 0 < shape[1]
            and all(len(row) == shape[1] for row in self.seconds)
            and len(self.seconds) == shape[0]
            and all(0 < second < float("inf") for row in self.seconds for second in row)
            and all(sorted(set(sizes)) == list(sizes) for sizes in (self.lengths, self.nodes))
        )

    def save(self, path: Path) -> None:
        """Write as JSON, atomically."""
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(self.as_dict()))

    def as_dict(self) -> dict[str, Any]:
        """The content of a file."""
        return {"lengths": self.lengths, "nodes": self.nodes, "seconds": self.seconds}

    @classmethod
    def read(cls, path: Path) -> "StepCosts":
        """Read what `save` wrote."""
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a table of step costs: {error}") from error
        return cls.of(content, str(path))

    @classmethod
    def of(cls, content: dict[str, Any], name: str) -> "StepCosts":
        """The table that `as_dict` returned; `name` is for error messages."""
        try:
            seconds = tuple(tuple(float(x) for x in row) for row in content["seconds"])
            lengths, nodes = (tuple(map(int, content[each])) for each in ("lengths", "nodes"))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{name} is not a table of step costs: {error}") from error
        costs = cls(lengths, nodes, seconds)
        if not costs._is_sound():
            raise InputError(f"{name} is not a table of step costs: sizes or values do not fit")
        return costs


@njit(cache=True)
def _beyond(lines, before, after, share, rows, nodes, sequences):  # noqa: ANN001, ANN202, PLR0913
    """See `StepCosts.beyond`; the length lies between those of two lines."""
    seconds = np.empty(nodes + 1)
    for n in range(nodes + 1):
        mine = (rows + n) / sequences  # rows of each sequence
        low = int(mine)
        high = min(low + 1, lines.shape[1] - 1)
        context = 0.0
        for row, weight in ((low, 1 - (mine - low)), (high, mine - low)):
            line = lines[before, row] + share * (lines[after, row] - lines[before, row])
            context += weight * (line - lines[0, row])
        seconds[n] = lines[0, rows + n] + context
    return seconds


def _extended(lines: np.ndarray, count: int) -> np.ndarray:
    """Lines [lengths, n] extended: past the end a row adds as much as the last measured ones."""
    last = lines.shape[1] - 1
    half = max(last // 2, 1)
    slope = (lines[:, last:] - lines[:, half : half + 1]) / max(last - half, 1)
    return np.concatenate([lines, lines[:, last:] + slope * np.arange(1, count - last)], 1)


def measure(model: LanguageModel) -> StepCosts:
    """Time real steps over an empty cache; the shortest of a few repeats counts."""
    sizes = GPU_NODES if model.asynchronous else NODES
    counts = tuple(nodes for nodes in sizes if 2 * nodes <= model.context_length)
    limit = min(model.context_length, model.arena.max_rows or model.context_length) - counts[-1] - 1
    known = GPU_LENGTHS if model.asynchronous else LENGTHS
    lengths = tuple(length for length in known if length <= limit) or (0,)
    repeats = _MORE_REPEATS if model.asynchronous else _REPEATS
    extent = model.open(lengths[-1] + counts[-1] + 1)
    try:
        model.arena.ensure(extent, lengths[-1] + counts[-1])
        if min(_seconds(model, [extent], chain([1])) for _ in range(2)) > _SLOW:
            counts, repeats = counts[::3], 1
        best = np.full((len(lengths), len(counts)), np.inf)
        trees = [_like_draft(nodes, model.vocabulary) for nodes in counts]
        for repeat in range(repeats):
            for i, length in enumerate(lengths):
                _pretend(model, extent, length)
                for j, tree in enumerate(trees):
                    if repeat < _REPEATS or len(tree) <= MAX_TREE:
                        best[i, j] = min(best[i, j], _seconds(model, [extent], tree))
    finally:
        extent.length = 0
        model.close(extent)
    costs = StepCosts(lengths, counts, tuple(tuple(row) for row in best.tolist()))
    return _with_many(model, costs) if model.asynchronous and model.arena.max_rows else costs


def _with_many(model: LanguageModel, costs: StepCosts) -> StepCosts:
    """The same with one more line, of many sequences at once: a device is mostly idle with one
    context, so the cost of more does not follow from that of one."""
    length, shortest = costs.lengths[-1], costs.lengths[0]
    extents: list[Extent] = []
    try:
        while len(extents) < MANY:
            extents.append(model.open(length + FEW[-1]))
    except OutOfRowsError:
        pass  # as many as fit
    try:
        several = len(extents) > 1 and length > shortest
        return _with_line(model, costs, extents) if several else costs
    finally:
        for extent in extents:
            extent.length = 0
            model.close(extent)


def _with_line(model: LanguageModel, costs: StepCosts, extents: list[Extent]) -> StepCosts:
    """Adds the cost of the contexts: measured for few nodes of each sequence, extrapolated with
    the length for many."""
    length, shortest, count = costs.lengths[-1], costs.lengths[0], len(extents)
    for extent in extents:
        _pretend(model, extent, length)
    best = np.full(len(FEW), np.inf)
    for _ in range(_MORE_REPEATS):
        for j, nodes in enumerate(FEW):
            best[j] = min(best[j], _seconds(model, extents, _like_draft(nodes, model.vocabulary)))
    alone = costs.beyond(shortest, 0, count * FEW[-1])
    added = np.maximum(best - alone[count * np.array(FEW)], 0.0)
    first, last = np.array(costs.seconds[0]), np.array(costs.seconds[-1])
    nodes = np.array(costs.nodes)
    few, many = np.interp(nodes, FEW, added), np.maximum(count * (last - first), added[-1])
    line = first + np.where(nodes <= FEW[-1], few, many)
    together = shortest + count * (length - shortest)
    seconds = (*costs.seconds, tuple(line.tolist()))
    return StepCosts((*costs.lengths, together), costs.nodes, seconds)


def _pretend(model: LanguageModel, extent: Extent, length: int) -> None:
    """Let an extent have so many committed rows, whatever they hold."""
    extent.length = length
    if length:
        model.arena.storage.blank(extent.start + length - 1)


def _seconds(model: LanguageModel, extents: list[Extent], tree: DraftTree) -> float:
    """Of a step with such a tree for each sequence, until its first logit is on the host."""
    count, prefill = len(extents), len(tree) > MAX_TREE
    start = time.perf_counter()
    model.score(extents, [tree] * count, last_only=[prefill] * count)[0][0, 0].item()
    return time.perf_counter() - start


def _like_draft(nodes: int, vocabulary: int) -> DraftTree:
    """A chain with a second branch, because attention computes trees and chains differently; a
    prompt is a chain. Its tokens differ, because each touches other experts of a mixture."""
    tokens = (1 + np.arange(nodes) * SCATTER % (vocabulary - 1)).tolist()
    if 2 < nodes <= MAX_TREE:
        return from_paths(tokens[0], [tokens[1:-1], tokens[-1:]])
    return chain(tokens)


def costs_for(model: LanguageModel, identity: str, dtype: str, device: str) -> StepCosts:
    """This model's table here: $GRAFT_COSTS ("reference" or a file), the cache, or measured.

    The context's length is part of the key: no length beyond it is measured.
    """
    context = f"context {model.context_length}"
    parts = [identity, dtype, device, type(model.forward).__name__, context]
    return kept_costs(parts, lambda: measure(model))


def kept_costs(
    parts: Sequence[str], measured: Callable[[], StepCosts], *, share: float = 1.0
) -> StepCosts:
    """A table that depends on `parts`, the device the third of them, and on the machine; where
    $GRAFT_COSTS names one, `share` of its times."""
    given = given_costs()
    if given:
        seconds = tuple(tuple(share * second for second in row) for row in given.seconds)
        return replace(given, seconds=seconds)
    path = costs_path(parts)
    if path.exists():
        try:
            return StepCosts.read(path)
        except InputError:
            pass  # damaged: measure again
    costs = measured()
    costs.save(path)
    return costs


def given_costs() -> StepCosts | None:
    """The table that $GRAFT_COSTS names ("reference" or a file), if it does."""
    chosen = os.environ.get(CHOSEN)
    if not chosen:
        return None
    return StepCosts.read(REFERENCE if chosen == "reference" else Path(chosen))


def costs_are_given() -> bool:
    """Whether costs come from a table, so that counts do not depend on the machine."""
    return bool(os.environ.get(CHOSEN))


def costs_path(parts: Sequence[str]) -> Path:
    """The file of a measurement that depends on `parts`, the device the third of them, and on the
    machine."""
    import torch

    device = parts[2]
    everything = [
        *parts,
        platform.processor() or platform.machine(),
        platform.node(),
        str(torch.get_num_threads()),
        *(version(name) for name in ("torch", "transformers", "numba")),
        "7",  # raise when the kernels change
    ]
    if device.startswith("cuda"):
        everything.append(torch.cuda.get_device_name(device))
    key = hashlib.sha256("\n".join(everything).encode()).hexdigest()[:24]
    return home() / "costs" / f"{key}.json"
