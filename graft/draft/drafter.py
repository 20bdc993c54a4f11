"""The protocol of all drafters: start a sequence, propose trees, observe steps, finish."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from graft.draft.options import DraftOptions
from graft.models.language_model import TargetStep
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree, root_only

Item = TypeVar("Item")


@dataclass(slots=True)
class DraftContext:
    """What drafters know of a sequence; `tokens` grows with every step."""

    sequence: int
    prompt: list[int]
    quotable: list[tuple[int, int]]  # spans of the prompt that are content, not chat template
    documents: list[list[int]] = field(default_factory=list)
    prediction: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sampler: Sampler | None = None  # samples the target's tokens
    salt: str = ""  # prefixes are shared only with prompts of the same salt
    options: DraftOptions = DraftOptions()
    unseen: int = 0  # first tokens without features: they came from the prefix cache
    # By source: tokens that a hierarchical drafter verified itself, and those it accepted
    inner_drafted: Counter[str] = field(default_factory=Counter)
    inner_accepted: Counter[str] = field(default_factory=Counter)

    @property
    def root(self) -> int:
        """The last known token."""
        return self.tokens[-1]

    @property
    def greedy(self) -> bool:
        """Whether tokens are the most likely ones, not sampled."""
        return self.sampler is None or self.sampler.params.greedy

    def max_tokens(self, limit: int) -> int:
        """Draft tokens of a step: the request's own maximum, at most `limit`."""
        own = self.options.max_tokens
        return limit if own is None else min(limit, own)


@dataclass(slots=True)
class Budget:
    """What a step may cost.

    `nodes` limits the nodes of a tree, root excluded; `seconds` [n] is the time of the step with n
    nodes in all its trees; `base_tokens` are generated without any; `overhead_seconds` come on top
    once there is a node; `prefills` says whether the step computes prompt tokens too.
    """

    nodes: int
    seconds: np.ndarray
    base_tokens: float = 1
    overhead_seconds: float = 0.0
    prefills: bool = False

    def after(self, trees: Sequence[DraftTree]) -> "Budget":
        """What remains for other drafters once these trees are in the step."""
        expected = sum(float(tree.scores[1:].sum()) for tree in trees)
        nodes = min(sum(len(tree) - 1 for tree in trees), len(self.seconds) - 1)
        seconds, overhead = self.seconds[nodes:], self.overhead_seconds
        if nodes:  # the overhead is spent
            seconds, overhead = seconds + overhead, 0.0
        return Budget(self.nodes, seconds, self.base_tokens + expected, overhead, self.prefills)


class Drafter(Protocol):
    """One signature for all drafters."""

    def start(self, context: DraftContext) -> None:
        """A sequence starts. During its prefill there are no tokens yet; the first one is observed
        like all others."""

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """A tree for each sequence, rooted at its last token; one budget for all of them."""

    def observe(self, steps: list[TargetStep]) -> None:
        """Committed tokens of a step, whatever drafted them, and prefill chunks of a prompt."""

    def finish(self, sequence: int) -> None:
        """Forget the sequence."""


def by_drafter(
    items: Sequence[Item], drafter_of: Callable[[Item], Drafter]
) -> list[tuple[Drafter, list[int]]]:
    """Every drafter once, with the places of its items."""
    found: dict[int, tuple[Drafter, list[int]]] = {}
    for place, item in enumerate(items):
        drafter = drafter_of(item)
        known = found.get(id(drafter))
        if known is None:
            found[id(drafter)] = drafter, [place]
        else:
            known[1].append(place)
    return list(found.values())


PendingTrees = Callable[[], list[DraftTree]]


class BeginsEarly(Drafter, Protocol):
    """A drafter whose device may draft while the host does something else."""

    begins_early: bool  # whether it does

    def begin(self, contexts: list[DraftContext], budget: Budget) -> PendingTrees:
        """Start what `propose` does; the returned function waits for the trees."""


def begins_early(drafter: Drafter) -> TypeGuard[BeginsEarly]:
    """Whether the drafter's device drafts beside the host."""
    return getattr(drafter, "begins_early", False)


@runtime_checkable
class UpdatesAsync(Protocol):
    """A drafter with work that can run while the device computes the step."""

    def update_async(self) -> None:
        """Called after the step with the last proposals was launched."""


@runtime_checkable
class RunsAhead(Protocol):
    """A drafter that lets a step without drafts start before the tokens of the last are known."""

    def can_skip(self, contexts: list[DraftContext]) -> bool:
        """Whether the next step of these sequences has no drafts, whatever their tokens are."""

    def skip(self) -> None:
        """That step starts now, without a call of `propose`."""


def updates_async(drafter: Drafter) -> TypeGuard[UpdatesAsync]:
    """Whether the drafter has such work. Asked in every step: `isinstance` takes 20 µs."""
    return _follows(type(drafter), UpdatesAsync)


def runs_ahead(drafter: Drafter) -> TypeGuard[RunsAhead]:
    """Whether the drafter may let a step start; see `updates_async`."""
    return _follows(type(drafter), RunsAhead)


@cache
def _follows(kind: type, protocol: type) -> bool:
    return issubclass(kind, protocol)


@runtime_checkable
class Detachable(Protocol):
    """A drafter that can stop following a running sequence."""

    def detach(self, sequence: int) -> None:
        """Forget the sequence; a combination keeps its first drafter."""


class TakesOptions(Protocol):
    """A drafter that uses numbers of a request other than `max_tokens`."""

    @property
    def options(self) -> frozenset[str]:
        """The fields of DraftOptions that it uses."""


def options_of(*drafters: object) -> frozenset[str]:
    """The fields of DraftOptions that any of these uses."""
    return frozenset().union(*(getattr(each, "options", ()) for each in drafters))


class DraftersByName(Protocol):
    """Drafters by preset, made on first use."""

    @property
    def names(self) -> list[str]:
        """The presets."""

    def __contains__(self, name: object) -> bool:
        """Whether the drafter is made already."""

    def __getitem__(self, name: str) -> Drafter:
        """The drafter; InputError for an unknown name."""


class NoDraft:
    """Plain decoding."""

    def start(self, context: DraftContext) -> None:
        """See Drafter."""

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        return [root_only(context.root) for context in contexts]

    def can_skip(self, contexts: list[DraftContext]) -> bool:
        """See RunsAhead."""
        return True

    def skip(self) -> None:
        """See RunsAhead."""

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""

    def finish(self, sequence: int) -> None:
        """See Drafter."""
