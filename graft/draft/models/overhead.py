"""Seconds of a draft level beyond the draft model's step: sampling and copying to the host.

On a GPU the host's part takes about as long as the step itself, so it is measured once, when a
draft model is loaded.
"""

import time
from dataclasses import replace

import numpy as np

from graft.draft.drafter import Budget, DraftContext
from graft.draft.models.growth import ChainGrowth
from graft.draft.models.model import DraftModel, ModelDrafter

LEVELS = 8
REPEATS = 5
PROMPT = 128  # tokens


def with_overhead(draft_model: DraftModel) -> DraftModel:
    """The same draft model with its measured overhead; on a CPU it is negligible and stays 0."""
    if not draft_model.model.asynchronous:
        return draft_model
    drafter = ModelDrafter(draft_model, ChainGrowth(depth=LEVELS), nodes=LEVELS, adaptive=False)
    context = DraftContext(0, [0] * PROMPT, [], tokens=[0])
    budget = Budget(LEVELS, np.ones(LEVELS + 1))
    drafter.start(context)
    try:
        seconds = min(_timed(drafter, context, budget) for _ in range(REPEATS))
    finally:
        drafter.finish(context.sequence)
    step = draft_model.costs.step(PROMPT, 1)
    return replace(draft_model, overhead=max(0.0, seconds / LEVELS - step))


def _timed(drafter: ModelDrafter, context: DraftContext, budget: Budget) -> float:
    """Seconds of a draft; the first also prefills the prompt, and is never the shortest."""
    start = time.perf_counter()
    drafter.propose([context], budget)
    return time.perf_counter() - start
