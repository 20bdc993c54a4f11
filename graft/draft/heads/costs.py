"""Measured costs of a draft head on this machine, stored like the target's step costs.

`head_costs` times the head's levels. `with_overhead` times the rest of a draft: storing features,
processing the new tokens, building trees. `warm_shapes` captures the CUDA graphs before that.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from graft.draft.drafter import Budget, DraftContext
from graft.draft.heads.growth import BATCHES, Beam, DraftInput, Growth
from graft.draft.heads.head import BEAMS, DraftHead, HeadDrafter
from graft.draft.heads.ranks import RANKS
from graft.draft.heads.shapes import SHAPES, TRIAL
from graft.models.arena import Extent
from graft.models.heads.runner import HeadRunner, Memory, Text
from graft.models.language_model import LanguageModel, TargetStep
from graft.models.step_costs import LENGTHS, StepCosts, kept_costs
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, root_only

NODES = (1, 2, 4, 8, 16)  # as many as a captured graph has
LEVELS = 4  # timed together, so that each has a share of the fixed costs
LEVEL_SHARE = 0.1  # of a step's cost, where costs must not depend on the machine
SEQUENCES = (1, 4)
PROMPT = 16  # tokens
OVERHEAD_SHARE = 0.02  # of a step's cost, where costs must not depend on the machine
MIN_OVERHEAD = 1e-9
_LEVEL_REPEATS, _OVERHEAD_REPEATS = 3, 8
_TOKEN = 1


def head_costs(runner: HeadRunner, growth: Growth, fingerprint: str, dtype: str) -> StepCosts:
    """Seconds of a level by context length and nodes; see `step_costs.costs_for`."""
    parts = _cost_key(runner, growth, fingerprint, dtype)
    return kept_costs(parts, lambda: measure_levels(runner, growth), share=LEVEL_SHARE)


def with_overhead(head: DraftHead, fingerprint: str, dtype: str) -> DraftHead:
    """The same head with its measured overhead; see `step_costs.costs_for`."""
    parts = [*_cost_key(head.runner, head.growth, fingerprint, dtype), "overhead"]
    overhead = kept_costs(parts, lambda: measure_overhead(head), share=OVERHEAD_SHARE)
    return replace(head, overhead=overhead)


def _cost_key(runner: HeadRunner, growth: Growth, fingerprint: str, dtype: str) -> list[str]:
    """What a head's times depend on, apart from the machine."""
    config = runner.config
    sizes = [config.draft_vocabulary, config.inner, config.cross_layers]
    about = [config.kind, *map(str, sizes)]
    version = "2"  # raise when the measurement or the head's forward changes
    return [fingerprint, dtype, str(runner.device), type(growth).__name__, *about, version]


def measure_levels(runner: HeadRunner, growth: Growth) -> StepCosts:
    """Time levels after texts of several lengths; the shortest time counts."""
    lengths = tuple(n for n in LENGTHS if n < runner.model.context_length) or (1,)
    best = np.full((len(lengths), len(NODES)), np.inf)
    for i, length in enumerate(lengths):
        with read_text(runner, length) as (memory, extent):
            for j, nodes in enumerate(NODES):
                beam = Beam((nodes,) * LEVELS, max(NODES), keeps_all=True)
                for repeat in range(_LEVEL_REPEATS + 1):
                    start = time.perf_counter()
                    growth.begin([DraftInput(text_of(runner, memory, 1), extent, None)], beam)()
                    if repeat:  # the first compiles and captures
                        best[i, j] = min(best[i, j], (time.perf_counter() - start) / LEVELS)
    return StepCosts(lengths, NODES, tuple(tuple(row) for row in best.tolist()))


@contextmanager
def read_text(runner: HeadRunner, length: int) -> Iterator[tuple[Memory, Extent]]:
    """The head's and the target's rows of a text of this length, to draft after it. The target's
    rows keep old values, which does not change any cost."""
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
    """`count` arbitrary tokens, with features where the head needs them."""
    features = None
    if runner.window is None:
        size = (count, runner.feature_size)
        features = torch.zeros(size, dtype=runner.dtype, device=runner.device)
    return Text(memory, [_TOKEN] * count, features)


def warm_shapes(head: DraftHead, sequences: int = 1) -> None:
    """Run a draft of every shape, greedy and sampled, for every captured batch size up to the one
    for so many sequences."""
    runner = head.runner
    sampler = Sampler(SamplingParams(temperature=1.0, seed=0), [], runner.model.vocabulary)
    sizes = BATCHES[: bisect_left(BATCHES, sequences) + 1]
    beams = BEAMS[runner.config.kind][0], *SHAPES
    with ExitStack() as stack:
        texts = [
            stack.enter_context(read_text(runner, PROMPT)) for _ in range(min(sequences, sizes[-1]))
        ]
        for size, beam, each in product(sizes, beams, (None, sampler)):
            inputs = []
            for memory, extent in texts[:size]:
                memory.end = PROMPT  # the same token every time
                inputs.append(DraftInput(text_of(runner, memory, 1), extent, each))
            head.growth.begin(inputs, beam)()


def measure_overhead(head: DraftHead) -> StepCosts:
    """Time drafts of one level after real steps, and subtract the level's cost."""
    seconds = tuple(_overhead_seconds(head, count) for count in SEQUENCES)
    return StepCosts((PROMPT,), SEQUENCES, (seconds,))


def _overhead_seconds(head: DraftHead, count: int) -> float:
    model, drafter = head.runner.model, HeadDrafter(head, TRIAL, nodes=RANKS)
    contexts = [DraftContext(each, [_TOKEN] * PROMPT, []) for each in range(count)]
    extents = [model.open(PROMPT + _OVERHEAD_REPEATS) for _ in contexts]
    budget = Budget(RANKS, np.ones(count * RANKS + 1))
    best = np.inf
    try:
        for context, extent in zip(contexts, extents, strict=True):
            drafter.start(context)
            drafter.observe(_run_step([context], [extent], model, PROMPT))
        for _ in range(_OVERHEAD_REPEATS):
            steps = _run_step(contexts, extents, model, 1)
            start = time.perf_counter()
            drafter.observe(steps)
            drafter.propose(contexts, budget)
            best = min(best, time.perf_counter() - start)
    finally:
        for context, extent in zip(contexts, extents, strict=True):
            drafter.finish(context.sequence)
            extent.length = 0
            model.close(extent)
    return max(MIN_OVERHEAD, best - head.costs.step(PROMPT, count))


def _run_step(
    contexts: Sequence[DraftContext], extents: Sequence[Extent], model: LanguageModel, tokens: int
) -> list[TargetStep]:
    """One target step over so many tokens of each sequence, waited for; each commits one token."""
    tree = chain([_TOKEN] * tokens) if tokens > 1 else root_only(_TOKEN)
    model.score(list(extents), [tree] * len(extents))[0][0, 0].item()
    steps = []
    for number, (context, extent) in enumerate(zip(contexts, extents, strict=True)):
        model.commit(extent, list(range(tokens)))
        context.tokens.append(_TOKEN)
        nodes = list(range(number * tokens, (number + 1) * tokens))
        steps.append(TargetStep(context.sequence, [_TOKEN], nodes, extent))
    return steps
