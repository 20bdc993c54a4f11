"""Chooses what drafts in each step: nothing, lookups, or lookups and a model.

A conservative bandit over three arms. Each step goes to the arm with the best estimate
(`estimator.py`). Another arm is explored only while its account covers the expected loss. An
account earns a share of the plain decoding time and what the arm's steps save, up to a cap. So the
time of all steps stays below (1 + ALPHA) x the time of plain decoding + a constant, whatever the
text (tests/draft/pacing/test_controller.py). Drafting is disabled until an arm can be afforded:
these steps are plain, run ahead, and cost no bookkeeping.

The cost table (`models/step_costs.py`) limits the nodes of a single draft; the controller adds what
the table cannot know: host time, a busy machine, drafts that are rejected more often than expected.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Protocol

import numpy as np

from graft.draft.drafter import (
    Budget,
    Detachable,
    DraftContext,
    Drafter,
    UpdatesAsync,
    by_drafter,
    options_of,
)
from graft.draft.pacing.estimator import MIN_STEPS, Arm, Estimator, Measured
from graft.draft.pacing.step_timer import StepSample, StepTimer
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

ALPHA = 0.01  # share of plain decoding's time that exploration may cost, all arms together
MAX_BALANCE = 24.0  # plain steps: what an account may spend in a row on text without copies
REFRESH_STEPS = 128  # drafted steps between two plain ones, which keep the plain estimate current


class Lookup(Drafter, UpdatesAsync, Protocol):
    """A drafter that copies from text."""

    def has_draft(self, contexts: list[DraftContext], budget: Budget) -> bool:
        """Whether `propose` would draft anything after the tokens observed so far."""


class LookupAndModel(Drafter, Detachable, Protocol):
    """The same lookups combined with a draft model or head, which can be detached."""


class Controller:
    """Drafts with `lookup`, or with `model` (lookups and a network) where that is faster.

    `model` does not run for prompts of fewer than `min_prompt` tokens. With `runs_ahead` the device
    can start plain steps before the last tokens are known.
    """

    def __init__(
        self,
        lookup: Lookup,
        clock: Callable[[], float],
        model: LookupAndModel | None = None,
        *,
        min_prompt: int = 0,
        runs_ahead: bool = False,
    ) -> None:
        self._runs_ahead = runs_ahead
        self._lookup, self._model, self._min_prompt = lookup, model, min_prompt
        self._clock, self._timer = clock, StepTimer(clock)
        self._estimators: dict[tuple[int, bool, bool], Estimator] = {}
        drafting = (Arm.LOOKUP,) if model is None else (Arm.LOOKUP, Arm.LOOKUP_AND_MODEL)
        self._accounts = dict.fromkeys(drafting, float(MIN_STEPS))  # plain steps
        self._income = ALPHA / len(drafting)
        self._since_refresh = self._refreshes = 0
        self._refreshing = False
        self._sequences: list[int] = []
        self._kind: tuple[int, bool, bool] | None = None
        self._estimator = self._decoding = Estimator(runs_ahead=runs_ahead)
        self._running: tuple[Estimator, Measured] | None = None
        self._ended: tuple[Estimator, Measured, StepSample] | None = None
        self._arm: Arm | None = None  # of the next step; None: not decided
        self._budget = Budget(0, np.ones(1))  # of the last step with drafts
        self._plain_seconds = inf  # of the last step without them, by the table
        self._disabled_steps = 0  # until an arm can be afforded: plain, and not measured
        self._ahead = False  # whether a plain step started before the tokens of the last arrived
        self._last: Arm | None = None  # arm of the last step, if it had the same sequences
        self._attached: set[int] = set()  # sequences that the model follows
        # By sequence: steps that the drafters have not observed yet, and contexts of sequences that
        # lookups have not started: where they cannot be afforded, texts are not indexed
        self._unseen: dict[int, list[TargetStep]] = {}
        self._waiting: dict[int, DraftContext] = {}

    @cached_property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return options_of(self._lookup, self._model)

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        if self._disabled_steps and self._kind and context.greedy != self._kind[1]:
            self._waiting[context.sequence] = context
            return
        self._disabled_steps = 0
        if self._attaches(context):
            self._attached.add(context.sequence)
        elif not self._affords(Arm.LOOKUP, self._decoding):
            self._waiting[context.sequence] = context
            return
        self._drafter(context.sequence).start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        if self._disabled_steps and self._kind and self._kind[0] == _size(contexts):
            self.skip()
            return [root_only(context.root) for context in contexts]
        self._disabled_steps = 0
        self._switch_to(contexts, prefills=budget.prefills)
        arm = self._decide() if self._arm is None else self._arm
        self._arm, self._ahead = None, False
        self._close_step(self._timer.begin(self._sequences))
        plain = expected = float(budget.seconds[0])
        self._plain_seconds = self._plain_seconds if budget.prefills else plain
        nodes = 0
        if arm is Arm.PLAIN:
            trees = [root_only(context.root) for context in contexts]
        else:
            self._show_unseen()
            budget = replace(budget, overhead_seconds=self._estimator.overhead_seconds)
            trees, self._budget = self._draft(arm, contexts, budget), budget
            nodes = sum(map(len, trees)) - len(trees)
            expected = float(budget.seconds[min(nodes, len(budget.seconds) - 1)])
        measured = Measured(arm, len(contexts), plain, expected, nodes, blocked_by=self._blocking())
        self._running, self._last = (self._estimator, measured), arm
        return trees

    def can_skip(self, contexts: list[DraftContext]) -> bool:
        """See RunsAhead: a plain step after a plain step, if no model follows the sequences. A step
        with lookups after one that found nothing, too, if they find nothing now: a copy that begins
        is drafted one token later, and steps without copies take no longer than plain ones."""
        if self._disabled_steps:
            return True
        same = [context.sequence for context in contexts] == self._sequences
        decodes = self._estimator is self._decoding
        if not (same and decodes and self._running) or self._attached:
            return False
        last = self._running[1]
        if self._arm is not last.arm or last.nodes:
            return False
        return self._arm is Arm.PLAIN or not self._lookup.has_draft(contexts, self._budget)

    def skip(self) -> None:
        """See RunsAhead. The step counts from the arrival of the tokens before it."""
        if self._disabled_steps:
            self._disabled_steps -= 1
            self._earn(1.0)
        else:
            self._arm, self._ahead = None, True

    def update_async(self) -> None:
        """See UpdatesAsync."""
        if self._disabled_steps:
            return
        self._arm = self._decide()
        self._disabled_steps = self._steps_without_drafts() if self._arm is Arm.PLAIN else 0
        if self._disabled_steps:  # forget the running step
            self._timer.close()
            self._sequences, self._running, self._ended, self._last = [], None, None, None
            self._arm, self._ahead = None, False

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter. After a plain step without a model, the next one need not wait for this."""
        if not self._disabled_steps:
            self._timer.add_tokens(sum(len(step.tokens) for step in steps))
        if self._ahead and self._running:
            self._ahead = False
            self._close_step(self._timer.begin(self._sequences))
            estimator, last = self._running
            self._running = estimator, replace(last, ahead=True, blocked_by=None)
        for step in steps:
            if step.sequence not in self._waiting:
                self._unseen.setdefault(step.sequence, []).append(step)
        if self._attached or (self._running and self._running[1].arm is not Arm.PLAIN):
            self._show_unseen()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._timer.close()
        self._unseen.pop(sequence, None)
        if self._waiting.pop(sequence, None) is None:
            self._drafter(sequence).finish(sequence)
        self._attached.discard(sequence)

    def _drafter(self, sequence: int) -> Drafter:
        return self._model if self._model and sequence in self._attached else self._lookup

    def _drafter_of(self, item: DraftContext | TargetStep) -> Drafter:
        return self._drafter(item.sequence)

    def _attaches(self, context: DraftContext) -> bool:
        """Whether the model follows a new sequence: its arm can be afforded for some steps."""
        if self._model is None or len(context.prompt) < self._min_prompt:
            return False
        return self._affords(Arm.LOOKUP_AND_MODEL, self._decoding, steps=MIN_STEPS)

    def _switch_to(self, contexts: list[DraftContext], *, prefills: bool) -> None:
        """Find the estimator of a step; a decision made for other sequences is dropped."""
        sequences = [context.sequence for context in contexts]
        if sequences == self._sequences and self._kind and self._kind[2] == prefills:
            return
        greedy = sum(context.greedy for context in contexts)
        kind = _size(contexts), 2 * greedy < len(contexts), prefills
        self._sequences, self._last = sequences, None
        if kind == self._kind:
            return
        if kind not in self._estimators:
            alike = [each for each in self._estimators if each[1] == kind[1]]
            nearest = min(alike, key=lambda each: abs(each[0] - kind[0]), default=kind)
            self._estimators[kind] = Estimator(
                self._estimators.get(nearest), runs_ahead=self._runs_ahead and not prefills
            )
        self._kind, self._estimator, self._arm = kind, self._estimators[kind], None
        if not prefills:
            self._decoding = self._estimator

    def _blocking(self) -> Arm | None:
        """The arm that keeps a plain step of these sequences from running ahead, if one does."""
        if not self._runs_ahead:
            return None
        if not self._attached.isdisjoint(self._sequences):
            return Arm.LOOKUP_AND_MODEL
        return self._last or None

    def _decide(self) -> Arm:
        """Estimate, and choose the arm of the next step; let its drafters catch up."""
        if self._ended:
            self._settle(*self._ended)
            self._ended = None
        arm = self._next_arm()
        if arm is not Arm.PLAIN:
            self._show_unseen()
            self._lookup.update_async()
        return arm

    def _next_arm(self) -> Arm:
        """The best affordable arm or, now and then, one below it."""
        arm = self._best_affordable()
        if self._refreshing:  # the second plain step in a row runs ahead
            self._refreshing = False
            return Arm.PLAIN
        self._since_refresh += arm is not Arm.PLAIN
        if self._since_refresh > REFRESH_STEPS:  # the arms below, in turn
            self._since_refresh, self._refreshes = 0, self._refreshes + 1
            arm = Arm(self._refreshes % arm)
            self._refreshing = arm is Arm.PLAIN and self._runs_ahead
        return arm

    def _best_affordable(self) -> Arm:
        """The highest arm that loses nothing, or no more than its account holds."""
        following = not self._attached.isdisjoint(self._sequences)
        for arm in reversed(self._accounts):
            if arm is Arm.LOOKUP_AND_MODEL and not following:
                continue
            if self._affords(arm, self._estimator):
                if self._estimator.knows(Arm(arm - 1)):
                    return arm
            elif arm is Arm.LOOKUP_AND_MODEL and self._estimator is self._decoding:
                self._detach()
        return Arm.PLAIN

    def _affords(self, arm: Arm, estimator: Estimator, steps: int = 1) -> bool:
        """Whether an arm's account covers what so many steps are expected to lose."""
        return self._accounts[arm] >= steps * self._loss(arm, estimator)

    def _loss(self, arm: Arm, estimator: Estimator) -> float:
        """Plain steps that a step of an arm loses against the best arm below it, at least 0."""
        missing = 1 - estimator.speed(arm) / self._other_speed(arm, estimator)
        return max(missing, 0.0) * estimator.time(arm)

    @staticmethod
    def _other_speed(arm: Arm, estimator: Estimator) -> float:
        return max(estimator.speed(each) for each in Arm if each < arm)

    def _settle(self, estimator: Estimator, step: Measured, sample: StepSample) -> None:
        """Count a step that ended, and what it saved against the best arm below its own.

        Its time is the mean of its arm: single steps are noisy.
        """
        estimator.add(step, sample)
        if step.arm is Arm.PLAIN and step.blocked_by:
            self._accounts[step.blocked_by] -= estimator.delay(step, sample)
        time = estimator.time(step.arm)
        self._earn(time)
        if step.arm is not Arm.PLAIN and estimator.knows(Arm.PLAIN):
            tokens = sample.tokens / step.sequences
            saved = tokens / self._other_speed(step.arm, estimator) - time
            self._accounts[step.arm] = min(self._accounts[step.arm] + saved, MAX_BALANCE)

    def _earn(self, time: float) -> None:
        """Every account's income of so many plain steps."""
        for arm, balance in self._accounts.items():
            self._accounts[arm] = min(balance + self._income * time, MAX_BALANCE)

    def _steps_without_drafts(self) -> int:
        """Plain steps until an arm can be afforded; 0 if one can be, while a model follows, or if
        the running step is to be charged to an account."""
        last = self._running and self._running[1]
        charged = last is None or last.arm is not Arm.PLAIN or last.blocked_by
        if charged or self._attached or self._estimator is not self._decoding:
            return 0
        missing = min(
            self._loss(arm, self._estimator) - balance for arm, balance in self._accounts.items()
        )
        return max(int(missing / self._income), 0)

    def _close_step(self, sample: StepSample | None) -> None:
        if sample and self._running:
            self._ended = *self._running, sample

    def _draft(self, arm: Arm, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        if arm is Arm.LOOKUP:
            return self._lookup.propose(contexts, budget)
        trees: dict[int, DraftTree] = {}
        for drafter, places in by_drafter(contexts, self._drafter_of):
            proposed = drafter.propose([contexts[i] for i in places], budget)
            trees.update(zip(places, proposed, strict=True))
        return [trees[place] for place in range(len(contexts))]

    def _show_unseen(self) -> None:
        """Let the drafters catch up: with the tokens of a context, and with steps since. Texts
        that are indexed late, while no prompt is read, are charged to lookups."""
        if self._waiting:
            begun = self._clock()
            for context in self._waiting.values():
                self._lookup.start(context)
            self._waiting.clear()
            lost = (self._clock() - begun) / self._plain_seconds
            self._accounts[Arm.LOOKUP] = max(self._accounts[Arm.LOOKUP] - lost, -MAX_BALANCE)
        unseen = [step for steps in self._unseen.values() for step in steps]
        self._unseen.clear()
        for drafter, places in by_drafter(unseen, self._drafter_of):
            drafter.observe([unseen[i] for i in places])

    def _detach(self) -> None:
        """The model stops following the running sequences: following costs time in every step."""
        assert self._model is not None
        for sequence in self._attached.intersection(self._sequences):
            self._model.detach(sequence)
            self._attached.remove(sequence)


def _size(contexts: list[DraftContext]) -> int:
    """Number of a range of batch sizes: 1, 2, 3 to 4, 5 to 8 and so on, so that a full batch and
    one with a free place are alike."""
    return (len(contexts) - 1).bit_length()
