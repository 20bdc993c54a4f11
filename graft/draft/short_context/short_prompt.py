"""A draft model with a short version of a long prompt (RAPID's drafter).

The target prefills the whole prompt, the draft model only the passages that help with the question;
both continue with the same output tokens. A step over a short context is cheap, so even the target
itself can draft that way (self-speculation: the same weights, other rows of the same cache). So can
a larger model, whose distribution may improve the output (RAPID's verifier).

Passages are retrieved on a thread while the target prefills the prompt. The short prompt's rows
stay in the prefix cache: a chat that retrieves the same passages again prefills only the new
tokens, and where the target drafts, a shared beginning with the long prompt is already cached.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from graft.draft.drafter import (
    Budget,
    Detachable,
    DraftContext,
    Drafter,
    by_drafter,
    options_of,
)
from graft.draft.models.cost_model import CostModel
from graft.draft.models.model import DraftModel, ModelDrafter
from graft.draft.pacing.trust import FIRST_RATE
from graft.models.language_model import TargetStep
from graft.models.step_costs import StepCosts
from graft.tree.draft_tree import DraftTree, root_only

log = logging.getLogger(__name__)

SOURCE = "short context"
MIN_PROMPT = 1024  # tokens: to shorten a shorter prompt takes as long as its prefill
SHORT_RATIO = 4  # a long prompt has at least about this many times the tokens of its short version


# (long prompt, its spans of content, the request's own budget if any) -> a short prompt with the
# same last tokens. None: the prompt is not worth shortening, such as one without tokens. Called on
# a thread of its own.
Shorten = Callable[[Sequence[int], Sequence[tuple[int, int]], int | str | None], list[int] | None]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Which prompts are shortened: those of `min_tokens` or more. Shorter ones are used as they are
    if `drafts_whole`, which makes no sense where the target drafts for itself. With `wait`, a step
    waits for the short prompt, for verifiers whose output depends on when drafts begin."""

    shorten: Shorten
    min_tokens: int = MIN_PROMPT
    drafts_whole: bool = False
    wait: bool = False


class ShortContextDrafter:
    """Gives a draft model short prompts in place of long ones."""

    def __init__(self, drafter: ModelDrafter, prompts: Prompts) -> None:
        self._drafter, self._prompts = drafter, prompts
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="graft-shorten")
        self._pending: dict[int, Future[list[int] | None]] = {}
        self._contexts: dict[int, DraftContext] = {}  # the draft model's, by sequence

    def preload(self) -> "ShortContextDrafter":
        """Load what shortening needs, before the first prompt."""
        self._executor.submit(self._prompts.shorten, (), (), None)
        return self

    @property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return self._drafter.options | {"retrieved"}

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        if len(context.prompt) < self._prompts.min_tokens:
            self._start_whole(context)
        else:
            given = context.prompt, context.quotable, context.options.retrieved
            self._pending[context.sequence] = self._executor.submit(self._prompts.shorten, *given)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        for context in contexts:
            future = self._pending.get(context.sequence)
            if future and (future.done() or self._prompts.wait):
                del self._pending[context.sequence]
                self._start_short(context, future)
        started = [each for each in contexts if each.sequence in self._contexts]
        trees: dict[int, DraftTree] = {}
        if started:
            own = [self._contexts[each.sequence] for each in started]
            proposed = self._drafter.propose(own, budget)
            trees = {each.sequence: tree for each, tree in zip(started, proposed, strict=True)}
        return [trees.get(each.sequence) or root_only(each.root) for each in contexts]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._drafter.observe([step for step in steps if step.sequence in self._contexts])

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        if self._forget(sequence):
            self._drafter.finish(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable."""
        if self._forget(sequence):
            self._drafter.detach(sequence)

    def _forget(self, sequence: int) -> bool:
        """Forget a sequence; whether the draft model has started it."""
        self._pending.pop(sequence, None)
        return self._contexts.pop(sequence, None) is not None

    def _start_short(self, context: DraftContext, future: "Future[list[int] | None]") -> None:
        try:
            short = future.result()
        except Exception as error:  # the request goes on without drafts
            log.warning("no drafts from a short prompt: %s: %s", type(error).__name__, error)
            return
        if short is None:
            self._start_whole(context)
        else:
            self._start(replace(context, prompt=short, quotable=[]))

    def _start_whole(self, context: DraftContext) -> None:
        if self._prompts.drafts_whole:
            self._start(context)

    def _start(self, context: DraftContext) -> None:
        """Both contexts share the list of output tokens."""
        self._contexts[context.sequence] = context
        self._drafter.start(context)


class ByPromptLength:
    """One drafter for prompts of `min_tokens` or more, another for shorter ones, which then need
    not wait for merging the trees of more drafters. The two may share drafters."""

    def __init__(self, long: Drafter, short: Drafter, *, min_tokens: int) -> None:
        self._long, self._short, self._min_tokens = long, short, min_tokens
        self._chosen: dict[int, Drafter] = {}

    @property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return options_of(self._long, self._short)

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        chosen = self._long if len(context.prompt) >= self._min_tokens else self._short
        self._chosen[context.sequence] = chosen
        chosen.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        trees: dict[int, DraftTree] = {}
        for drafter, places in by_drafter(contexts, self._drafter_of):
            proposed = drafter.propose([contexts[i] for i in places], budget)
            trees.update(zip(places, proposed, strict=True))
            if len(places) < len(contexts):
                budget = budget.after(proposed)
        return [trees[place] for place in range(len(contexts))]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for drafter, places in by_drafter(steps, self._drafter_of):
            drafter.observe([steps[i] for i in places])

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        drafter = self._chosen.pop(sequence, None)
        if drafter:
            drafter.finish(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable. A single drafter that is not detachable keeps the sequence."""
        drafter = self._chosen.pop(sequence)
        if isinstance(drafter, Detachable):
            drafter.detach(sequence)

    def _drafter_of(self, item: DraftContext | TargetStep) -> Drafter:
        return self._chosen[item.sequence]


def min_prompt_length(
    costs: StepCosts, draft_model: DraftModel, depth: int, longest: int
) -> int | None:
    """The shortest prompt, in doublings, for which drafts from its short version are expected to
    save time at a high acceptance rate; None if there is none up to `longest` tokens."""
    length = MIN_PROMPT
    while length <= longest:
        budget = Budget(depth, costs.beyond(length, 1, depth))
        short = length // SHORT_RATIO
        model = CostModel(budget, draft_model.costs, short, overhead=draft_model.overhead)
        if model.saved_seconds(depth, 1, FIRST_RATE) > 0:
            return length
        length *= 2
    return None
