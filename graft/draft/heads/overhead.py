"""What a head's draft takes besides its levels: taking features along, reading the new tokens,
making trees of what was found. Measured once, and kept like the levels' times.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graft.draft.drafter import Budget, DraftContext
from graft.draft.heads.costs import depends_on
from graft.draft.heads.head import DraftHead, HeadDrafter
from graft.draft.heads.ranks import RANKS
from graft.draft.heads.worth import TRIAL
from graft.models.arena import Extent
from graft.models.language_model import LanguageModel, TargetStep
from graft.models.step_costs import StepCosts, kept_costs
from graft.tree.draft_tree import chain, root_only

SEQUENCES = (1, 4)
PROMPT = 16  # tokens
REFERENCE_SHARE = 0.02  # of a step's cost, where costs must not depend on the machine
LEAST = 1e-9
_ROUNDS = 8
_TOKEN = 1


def with_overhead(helper: DraftHead, fingerprint: str, dtype: str) -> DraftHead:
    """The same head, its overhead known; see `step_costs.costs_for`."""
    parts = [*depends_on(helper.runner, helper.growth, fingerprint, dtype), "overhead"]
    overhead = kept_costs(parts, lambda: measure(helper), share=REFERENCE_SHARE)
    return replace(helper, overhead=overhead)


def measure(helper: DraftHead) -> StepCosts:
    """Time drafts of one level after real steps, and take what the level costs away."""
    seconds = tuple(_besides(helper, count) for count in SEQUENCES)
    return StepCosts((PROMPT,), SEQUENCES, (seconds,))


def _besides(helper: DraftHead, count: int) -> float:
    model, drafter = helper.runner.model, HeadDrafter(helper, TRIAL, nodes=RANKS)
    contexts = [DraftContext(each, [_TOKEN] * PROMPT, []) for each in range(count)]
    extents = [model.open(PROMPT + _ROUNDS) for _ in contexts]
    budget = Budget(RANKS, np.ones(count * RANKS + 1))
    best = np.inf
    try:
        for context, extent in zip(contexts, extents, strict=True):
            drafter.start(context)
            drafter.observe(_read([context], [extent], model, PROMPT))
        for _ in range(_ROUNDS):
            steps = _read(contexts, extents, model, 1)
            start = time.perf_counter()
            drafter.observe(steps)
            drafter.propose(contexts, budget)
            best = min(best, time.perf_counter() - start)
    finally:
        for context, extent in zip(contexts, extents, strict=True):
            drafter.finish(context.sequence)
            extent.length = 0
            model.close(extent)
    return max(LEAST, best - helper.costs.step(PROMPT, count))


def _read(
    contexts: Sequence[DraftContext], extents: Sequence[Extent], model: LanguageModel, tokens: int
) -> list[TargetStep]:
    """Let the target read so many tokens of each and write one, and wait until it is done."""
    tree = chain([_TOKEN] * tokens) if tokens > 1 else root_only(_TOKEN)
    model.score(list(extents), [tree] * len(extents))[0][0, 0].item()
    steps = []
    for number, (context, extent) in enumerate(zip(contexts, extents, strict=True)):
        model.commit(extent, list(range(tokens)))
        context.tokens.append(_TOKEN)
        nodes = list(range(number * tokens, (number + 1) * tokens))
        steps.append(TargetStep(context.sequence, [_TOKEN], nodes, extent))
    return steps
