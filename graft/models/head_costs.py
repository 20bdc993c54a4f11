"""What a level of a draft head costs on this machine, measured and kept like the target's steps."""

import time

import numpy as np
import torch

from graft.models.head_runner import HeadRunner, Known, Memory, Round, Text
from graft.models.step_costs import LENGTHS, StepCosts, kept_costs

NODES = (1, 2, 4, 8, 16, 32, 64)
REFERENCE_SHARE = 0.1  # of a step's cost, where costs must not depend on the machine
_ROUNDS = 3


def head_costs(runner: HeadRunner, fingerprint: str, dtype: str) -> StepCosts:
    """This head's table here; see `step_costs.costs_for`."""
    about = [runner.config.kind, str(runner.config.draft_vocabulary), str(runner.config.inner)]
    parts = [fingerprint, dtype, str(runner.device), *about]
    return kept_costs(parts, lambda: measure(runner), share=REFERENCE_SHARE)


def measure(runner: HeadRunner) -> StepCosts:
    """Time levels over texts of several lengths; the shortest of a few rounds counts."""
    lengths = tuple(n for n in LENGTHS if n < runner.model.context_length) or (1,)
    best = np.full((len(lengths), len(NODES)), np.inf)
    for i, length in enumerate(lengths):
        memory, extent = _read(runner, length), runner.model.open(length)
        extent.length = length
        try:
            for _ in range(_ROUNDS):
                working = Round(runner, Known(runner, [memory], [extent]))
                working.root()
                for j, nodes in enumerate(NODES):
                    best[i, j] = min(best[i, j], _time(runner, working, nodes))
        finally:
            extent.length = 0
            runner.model.close(extent)
            runner.close(memory)
    return StepCosts(lengths, NODES, tuple(tuple(row) for row in best.tolist()))


def _read(runner: HeadRunner, length: int) -> Memory:
    """A text of so many tokens, as far as the head keeps it."""
    memory = runner.open()
    memory.begin(0)
    if runner.window is None:
        nothing = torch.zeros(
            length, runner.config.hidden, dtype=runner.dtype, device=runner.device
        )
        runner.read([Text(memory, [1] * length, nothing)])
    else:
        memory.begin(max(0, length - runner.window))
        runner.read([Text(memory, [1] * (length - memory.end))])
    return memory


def _time(runner: HeadRunner, working: Round, nodes: int) -> float:
    """Seconds of a level and of choosing its children."""
    tokens = torch.ones(1, nodes, dtype=torch.int64, device=runner.device)
    start = time.perf_counter()
    logits = runner.logits(working.level(tokens, torch.zeros_like(tokens)))
    logits.log_softmax(-1).topk(min(10, logits.shape[-1])).values[0, 0, 0].item()
    return time.perf_counter() - start
