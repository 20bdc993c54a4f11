"""What a level of a draft head costs on this machine, measured and kept like the target's steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from graft.draft.heads.growth import Asked, Beam, Growth
from graft.models.arena import Extent
from graft.models.heads.runner import HeadRunner, Memory, Text
from graft.models.step_costs import LENGTHS, StepCosts, kept_costs

NODES = (1, 2, 4, 8, 16)  # as many as fit a captured round
LEVELS = 4  # that are timed together: what a round costs besides them is shared out
REFERENCE_SHARE = 0.1  # of a step's cost, where costs must not depend on the machine
_ROUNDS = 3


def head_costs(runner: HeadRunner, growth: Growth, fingerprint: str, dtype: str) -> StepCosts:
    """This head's table here; see `step_costs.costs_for`."""
    parts = depends_on(runner, growth, fingerprint, dtype)
    return kept_costs(parts, lambda: measure(runner, growth), share=REFERENCE_SHARE)


def depends_on(runner: HeadRunner, growth: Growth, fingerprint: str, dtype: str) -> list[str]:
    """What makes one head's times another's, besides the machine."""
    config = runner.config
    sizes = [config.draft_vocabulary, config.inner, config.cross_layers]
    about = [config.kind, *map(str, sizes)]
    rounds = "2"  # raise when they change
    return [fingerprint, dtype, str(runner.device), type(growth).__name__, *about, rounds]


def measure(runner: HeadRunner, growth: Growth) -> StepCosts:
    """Time rounds after texts of several lengths; the shortest of a few counts."""
    lengths = tuple(n for n in LENGTHS if n < runner.model.context_length) or (1,)
    best = np.full((len(lengths), len(NODES)), np.inf)
    for i, length in enumerate(lengths):
        with read_text(runner, length) as (memory, extent):
            for j, nodes in enumerate(NODES):
                beam = Beam((nodes,) * LEVELS, max(NODES), keeps_all=True)
                for round_ in range(_ROUNDS + 1):
                    start = time.perf_counter()
                    growth.begin([Asked(text_of(runner, memory, 1), extent, None)], beam)()
                    if round_:  # the first compiles and captures
                        best[i, j] = min(best[i, j], (time.perf_counter() - start) / LEVELS)
    return StepCosts(lengths, NODES, tuple(tuple(row) for row in best.tolist()))


@contextmanager
def read_text(runner: HeadRunner, length: int) -> Iterator[tuple[Memory, Extent]]:
    """What a head and its target hold of a text of so many tokens, for rounds behind it. The
    target's rows are not written: what they hold does not change what anything costs."""
    model, memory = runner.model, runner.open()
    extent = model.open(length)
    extent.length = length
    try:
        if runner.window is not None:
            memory.begin(max(0, length - runner.window))
        runner.read([text_of(runner, memory, length - memory.end)])
        yield memory, extent
    finally:
        extent.length = 0
        model.close(extent)
        runner.close(memory)


def text_of(runner: HeadRunner, memory: Memory, count: int) -> Text:
    """Some tokens to read, for what that costs."""
    features = None
    if runner.window is None:
        size = (count, runner.config.hidden)
        features = torch.zeros(size, dtype=runner.dtype, device=runner.device)
    return Text(memory, [1] * count, features)
