"""What guessing takes besides the draft model's steps: drawing, and telling the host.

A GPU's step takes about as long as the host's part in the next one, so guesses cost more than
steps; how much more is measured once, when a draft model is loaded.
"""

import time
from dataclasses import replace

import numpy as np

from graft.draft.drafter import Budget, DraftContext
from graft.draft.models.growth import ChainGrowth
from graft.draft.models.model import DraftModel, ModelDrafter

LEVELS = 8
ROUNDS = 5
PROMPT = 128  # tokens


def with_overhead(helper: DraftModel) -> DraftModel:
    """The same draft model, its overhead known; on a CPU there is none to speak of."""
    if not helper.model.asynchronous:
        return helper
    drafter = ModelDrafter(helper, ChainGrowth(depth=LEVELS), nodes=LEVELS, adaptive=False)
    context = DraftContext(0, [0] * PROMPT, [], tokens=[0])
    budget = Budget(LEVELS, np.ones(LEVELS + 1))
    drafter.start(context)
    try:
        seconds = min(_timed(drafter, context, budget) for _ in range(ROUNDS))
    finally:
        drafter.finish(context.sequence)
    step = helper.costs.step(PROMPT, 1)
    return replace(helper, overhead=max(0.0, seconds / LEVELS - step))


def _timed(drafter: ModelDrafter, context: DraftContext, budget: Budget) -> float:
    """Seconds of a round; the first also reads the prompt, and is never the shortest."""
    start = time.perf_counter()
    drafter.propose([context], budget)
    return time.perf_counter() - start
