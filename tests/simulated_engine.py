"""A simulated engine: steps of a controller on a clock, with texts that can or cannot be drafted.

A plain step takes one second. Time is exact: tests decide about noise.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.controller import Controller
from graft.models.language_model import TargetStep
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, root_only

NODE_SECONDS = 0.02
BUDGET = Budget(100, 1 + NODE_SECONDS * np.arange(1000))


@dataclass(frozen=True)
class Draft:
    """At one place of a text: the nodes that lookups draft, how many of them the target accepts,
    and how many tokens of a model's chain of four it accepts."""

    nodes: int = 0
    accepted: int = 0
    by_model: int = 0


Text = Callable[[int, random.Random], Draft]  # position, randomness -> what can be drafted there


def nothing(position, rng):
    return Draft()


def rarely(position, rng):
    """Short matches that are nearly always wrong."""
    return Draft(2, int(rng.random() < 0.03)) if rng.random() < 0.3 else Draft()


def copies(position, rng):
    return Draft(8, min(8, int(rng.expovariate(0.25))))


def one_in_ten(position, rng):
    return Draft(10, 9) if rng.random() < 0.1 else Draft()


def late(position, rng):
    return copies(position, rng) if position > 300 else rarely(position, rng)


def switching(position, rng):
    return copies(position, rng) if position // 100 % 2 else rarely(position, rng)


def opening(position, rng):
    return Draft(10, 8) if position < 2 else rarely(position, rng)


def model_good(position, rng):
    return Draft(by_model=rng.choice([1, 2, 3]))


def model_bad(position, rng):
    return Draft(by_model=rng.choice([0, 0, 1]))


class SimulatedDrafter:
    """Drafts what the text says; records its calls."""

    def __init__(self, engine, *, model):
        self.engine, self.model, self.calls, self.budget = engine, model, [], None

    def start(self, context):
        self.calls.append(("start", context.sequence))
        if not self.engine.reads_prompt:
            self.engine.now += self.engine.index
            self.engine.seconds += self.engine.index

    def propose(self, contexts, budget):
        self.budget = budget
        self.engine.arm = 2 if self.model else max(self.engine.arm, 1)
        trees = []
        for context in contexts:
            nodes = self.engine.drafts[context.sequence].nodes
            nodes = max(nodes, 4) if self.model else nodes
            trees.append(chain([context.root] + [9] * nodes) if nodes else root_only(context.root))
        return trees

    def has_draft(self, contexts, budget):
        return any(self.engine.drafts[context.sequence].nodes for context in contexts)

    def observe(self, steps):
        self.calls += [("step", step.sequence) for step in steps]

    def finish(self, sequence):
        self.calls.append(("finish", sequence))

    def detach(self, sequence):
        self.calls.append(("detach", sequence))

    def update_async(self):
        pass


class SimulatedEngine:
    """Runs a controller; `host` is the time of a lookup, `model_seconds` that of a model's draft,
    `noise` the relative spread of a step's time, `stall` the share of steps five times as long.
    `between` is the time from tokens to the next step; plain steps that run ahead save it. `index`
    is the time to index a text, which is hidden while its prompt is read."""

    def __init__(  # noqa: PLR0913
        self, *, host=0.03, model_seconds=None, noise=0.0, stall=0.0, between=0.0, min_prompt=0,
        index=0.0, seed=0,
    ):  # fmt: skip
        self.index, self.reads_prompt = index, False
        self.between, self.ahead = between, False
        self.rng, self.now, self.arm = random.Random(seed), 0.0, 0
        self.host, self.model_seconds, self.noise, self.stall = host, model_seconds, noise, stall
        self.lookup = SimulatedDrafter(self, model=False)
        self.model = SimulatedDrafter(self, model=True)
        model = None if model_seconds is None else self.model
        self.controller = Controller(
            self.lookup, lambda: self.now, model, min_prompt=min_prompt, runs_ahead=between > 0
        )
        self.drafts, self.steps, self.sequences = {}, Counter(), 0
        self.left: dict[int, Draft] = {}  # copies that were not drafted when they began
        self.seconds = self.plain_seconds = 0.0  # of the steps, and of plain steps instead
        self.plain_step = 1.0

    def answers(self, text: Text, count=1, *, length=100, batch=1, temperature=0.0, prompt=2):
        """Generate so many answers (or batches of them)."""
        for _ in range(count):
            contexts = [self._start(temperature, prompt) for _ in range(batch)]
            positions = dict.fromkeys((context.sequence for context in contexts), 0)
            self.ahead, self.plain_seconds = False, self.plain_seconds + self.between
            while min(positions.values()) < length:
                self.drafts = {
                    each: self.left.pop(each, None) or text(place, self.rng)
                    for each, place in positions.items()
                }
                for step in self.step(contexts):
                    positions[step.sequence] += len(step.tokens)
            for context in contexts:
                self.controller.finish(context.sequence)

    def _start(self, temperature, prompt):
        self.sequences += 1
        context = DraftContext(self.sequences, [1] * prompt, [], tokens=[3])
        context.sampler = Sampler(SamplingParams(temperature=temperature, seed=0), [1], 10)
        self.reads_prompt = True
        self.controller.start(context)
        self.reads_prompt = False
        return context

    def step(self, contexts, budget=BUDGET):
        """One step; every sequence accepts what its text says."""
        self.arm = 0
        if self.ahead:
            trees, between = [root_only(5) for _ in contexts], 0.0
        else:
            trees, between = self.controller.propose(contexts, budget), self.between
            self.controller.update_async()
        steps = [self._accepted(*pair) for pair in zip(contexts, trees, strict=True)]
        nodes = sum(len(tree) - 1 for tree in trees)
        seconds = self.plain_step + NODE_SECONDS * nodes + (self.host if self.arm else 0.0)
        seconds += between
        seconds += self.model_seconds if self.arm == 2 else 0.0
        seconds *= max(1 + self.rng.gauss(0, self.noise), 0.5)
        seconds *= 5 if self.rng.random() < self.stall else 1
        self.ahead = bool(self.between) and not nodes and self.controller.can_skip(contexts)
        if self.ahead:
            self.controller.skip()
            self.controller.update_async()
        self.now += seconds
        self.seconds += seconds
        self.plain_seconds += sum(len(step.tokens) for step in steps) / len(steps) * self.plain_step
        self.steps[self.arm] += 1
        self.controller.observe(steps)
        return steps

    def _accepted(self, context, tree):
        draft = self.drafts[context.sequence]
        accepted = min(draft.accepted, len(tree) - 1)
        if len(tree) == 1 and draft.accepted > 1:  # the next token has the rest of the copy
            self.left[context.sequence] = Draft(draft.nodes - 1, draft.accepted - 1, draft.by_model)
        if self.arm == 2:
            accepted = max(accepted, draft.by_model)
        return TargetStep(context.sequence, [5] * (accepted + 1))

    def share(self, arm):
        """Of all steps, those of an arm."""
        return self.steps[arm] / self.steps.total()
