"""A draft model that reads a short version of a long prompt (RAPID's drafter).

The target reads the whole prompt, the draft model the passages of it that help with the question;
both go on with the same tokens. A step over a short context is cheap, so even the target itself
can guess ahead that way (self-speculation: the same weights, rows of its own in the same cache),
and a larger model can, whose guesses are then worth having for their own sake.

Which passages help is found on a thread while the target reads the prompt. The short prompt's rows
stay in the prefix cache like any other's: where a chat goes on and the same passages are taken
again, only what is new is read; and what begins like the long prompt itself, the target drafting
for itself finds read already.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from graft.draft.drafter import Budget, Detachable, DraftContext, Drafter
from graft.draft.models.model import DraftModel, ModelDrafter
from graft.draft.models.worth import Account
from graft.draft.pacing.trust import FIRST_HOPE
from graft.models.language_model import TargetStep
from graft.models.step_costs import StepCosts
from graft.tree.draft_tree import DraftTree, root_only

log = logging.getLogger(__name__)

SOURCE = "short context"
LEAST_PROMPT = 1024  # tokens: shorter ones are as quickly read as shortened
SHARE = 4  # a short prompt has about this part of the long one's tokens, or less


class Shortened(Protocol):
    """A short prompt."""

    tokens: Sequence[int]


class Shorten(Protocol):
    """From a long prompt to a short one; called on a thread of its own."""

    def __call__(
        self, tokens: Sequence[int], quotable: Sequence[tuple[int, int]]
    ) -> Shortened | None:
        """The short prompt, which ends with the same tokens; None where it would not be worth it,
        as of no tokens. `quotable` are the spans that are content rather than chat template."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Which prompts are shortened: those of `least` tokens. The others are drafted for as they are
    where they are `drafted_whole`: not by the target itself, which could only repeat its own step.
    Where a text depends on when its drafts begin, a round `waits` for the short prompt."""

    shorten: Shorten
    least: int = LEAST_PROMPT
    drafted_whole: bool = False
    waits: bool = False


class ShortContextDrafter:
    """Shows a draft model short prompts in place of long ones."""

    def __init__(self, drafter: ModelDrafter, prompts: Prompts) -> None:
        self._drafter, self._prompts = drafter, prompts
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="graft-shorten")
        self._coming: dict[int, Future[Shortened | None]] = {}
        self._latest: tuple[list[int], Future[Shortened | None]] | None = None
        self._shown: dict[int, DraftContext] = {}  # what the draft model knows of a sequence

    def get_ready(self) -> "ShortContextDrafter":
        """Have everything loaded that shortening needs, while there is nothing to shorten yet."""
        self._executor.submit(self._prompts.shorten, (), ())
        return self

    def start(self, context: DraftContext) -> None:
        """See Drafter. Answers to one prompt have it shortened once."""
        if len(context.prompt) < self._prompts.least:
            self._take_whole(context)
            return
        if self._latest is None or self._latest[0] is not context.prompt:
            coming = self._executor.submit(self._prompts.shorten, context.prompt, context.quotable)
            self._latest = context.prompt, coming
        self._coming[context.sequence] = self._latest[1]

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        for context in contexts:
            coming = self._coming.get(context.sequence)
            if coming and (coming.done() or self._prompts.waits):
                del self._coming[context.sequence]
                self._take_up(context, coming)
        shown = [context for context in contexts if context.sequence in self._shown]
        trees: dict[int, DraftTree] = {}
        if shown:
            proposed = self._drafter.propose([self._shown[each.sequence] for each in shown], budget)
            trees = {each.sequence: tree for each, tree in zip(shown, proposed, strict=True)}
        return [trees.get(each.sequence) or root_only(each.root) for each in contexts]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._drafter.observe([step for step in steps if step.sequence in self._shown])

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        if self._forgets(sequence):
            self._drafter.finish(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable."""
        if self._forgets(sequence):
            self._drafter.detach(sequence)

    def _forgets(self, sequence: int) -> bool:
        """Forget a sequence; whether the draft model knows of it."""
        self._coming.pop(sequence, None)
        if not self._coming:
            self._latest = None
        return self._shown.pop(sequence, None) is not None

    def _take_up(self, context: DraftContext, coming: "Future[Shortened | None]") -> None:
        """The short prompt is there."""
        try:
            short = coming.result()
        except Exception as error:  # an answer without drafts is still an answer
            log.warning("no drafts from a short prompt: %s: %s", type(error).__name__, error)
            return
        if short is None:
            self._take_whole(context)
        else:
            self._show(replace(context, prompt=list(short.tokens), quotable=[]))

    def _take_whole(self, context: DraftContext) -> None:
        if self._prompts.drafted_whole:
            self._show(context)

    def _show(self, context: DraftContext) -> None:
        """`tokens` stays the list that grows as the target writes."""
        self._shown[context.sequence] = context
        self._drafter.start(context)


class ByPrompt:
    """One drafter for prompts of `least` tokens or more, another for the rest, which so have no
    part in what the first one costs. They may share drafters."""

    def __init__(self, long: Drafter, rest: Drafter, *, least: int) -> None:
        self._long, self._rest, self._least = long, rest, least
        self._chosen: dict[int, Drafter] = {}

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        chosen = self._long if len(context.prompt) >= self._least else self._rest
        self._chosen[context.sequence] = chosen
        chosen.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        trees: dict[int, DraftTree] = {}
        for drafter, places in self._shared_out([each.sequence for each in contexts]):
            proposed = drafter.propose([contexts[i] for i in places], budget)
            trees.update(zip(places, proposed, strict=True))
            if len(places) < len(contexts):
                budget = budget.after(proposed)
        return [trees[place] for place in range(len(contexts))]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for drafter, places in self._shared_out([each.sequence for each in steps]):
            drafter.observe([steps[i] for i in places])

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        drafter = self._chosen.pop(sequence, None)
        if drafter:
            drafter.finish(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable. Whoever is alone goes on."""
        drafter = self._chosen.pop(sequence)
        if isinstance(drafter, Detachable):
            drafter.detach(sequence)

    def _shared_out(self, sequences: list[int]) -> list[tuple[Drafter, list[int]]]:
        """Each of the two, with the places of its own sequences, where it has any."""
        found = []
        for drafter in (self._rest, self._long):
            places = [i for i, each in enumerate(sequences) if self._chosen[each] is drafter]
            if places:
                found.append((drafter, places))
        return found


def pays_from(costs: StepCosts, helper: DraftModel, depth: int, longest: int) -> int | None:
    """The least tokens of a prompt, in doublings, from which drafts of a short version of it would
    pay by the clock if most came true; None where they never would, up to the `longest`."""
    length = LEAST_PROMPT
    while length <= longest:
        budget = Budget(depth, costs.beyond(length, 1, depth))
        account = Account(budget, helper.costs, length // SHARE, overhead=helper.overhead)
        if account.gain(depth, 1, FIRST_HOPE) > 0:
            return length
        length *= 2
    return None
