"""What every drafter is: told of a sequence, asked for trees, shown what came true."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from graft.models.language_model import TargetStep
from graft.sampling import Sampler
from graft.tree.draft_tree import DraftTree, root_only


@dataclass(slots=True)
class DraftContext:
    """What drafters may know of a sequence. `tokens` grows as the target writes."""

    sequence: int
    prompt: list[int]
    quotable: list[tuple[int, int]]  # spans of the prompt that are content, not chat template
    documents: list[list[int]] = field(default_factory=list)
    prediction: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sampler: Sampler | None = None  # what the target's tokens are drawn with
    salt: str = ""  # beginnings are shared with prompts of the same salt alone
    unseen: int = 0  # first tokens that a head knows nothing of: their rows were read by others
    # Guesses that a drafter checked itself, by who made them, and those it agreed to
    inner_drafted: Counter[str] = field(default_factory=Counter)
    inner_accepted: Counter[str] = field(default_factory=Counter)

    @property
    def root(self) -> int:
        """The last known token."""
        return self.tokens[-1]

    @property
    def greedy(self) -> bool:
        """Whether its tokens are the likeliest ones, not drawn."""
        return self.sampler is None or self.sampler.params.greedy


@dataclass(slots=True)
class Budget:
    """What a step may cost: most nodes of a tree besides its root; the seconds [n] of the step
    with n of them in all its trees; the tokens it yields without any; the seconds that any guess at
    all takes `overhead_seconds`, as far as that is known; and whether it `reads` prompts too."""

    nodes: int
    seconds: np.ndarray
    base_tokens: float = 1
    overhead_seconds: float = 0.0
    reads: bool = False

    def with_overhead(self, seconds: float) -> "Budget":
        """The same, with this overhead."""
        return Budget(self.nodes, self.seconds, self.base_tokens, seconds, self.reads)

    def after(self, trees: Sequence[DraftTree]) -> "Budget":
        """What is left for others once these trees are in the step: it yields what they promise,
        and every further node comes on top of theirs."""
        promised = sum(float(tree.scores[1:].sum()) for tree in trees)
        nodes = min(sum(len(tree) - 1 for tree in trees), len(self.seconds) - 1)
        seconds, besides = self.seconds[nodes:], self.overhead_seconds
        if nodes:  # they have paid for it
            seconds, besides = seconds + besides, 0.0
        return Budget(self.nodes, seconds, self.base_tokens + promised, besides, self.reads)


class Drafter(Protocol):
    """One signature for all; each ignores what it does not use."""

    def start(self, context: DraftContext) -> None:
        """A sequence begins. Its prompt may still be being read: then there are no tokens yet, and
        the first one is observed like all others."""

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """A tree for each sequence, rooted at its last token; one budget for all of them."""

    def observe(self, steps: list[TargetStep]) -> None:
        """What the target made final, whoever drafted it; of a prompt every piece that was read."""

    def finish(self, sequence: int) -> None:
        """Forget the sequence."""


@runtime_checkable
class UpdatesAsync(Protocol):
    """A drafter that thinks over what can wait while a device computes the step."""

    def update_async(self) -> None:
        """The step with the last proposals is on its way."""


@runtime_checkable
class Detachable(Protocol):
    """A drafter that can be let go of while a sequence goes on: one that learns from how answers
    end, or several."""

    def detach(self, sequence: int) -> None:
        """Forget the sequence; of several drafters, all but the first do."""


class DraftersByName(Protocol):
    """Some are there, others are made when they are first asked for."""

    @property
    def names(self) -> list[str]:
        """What can be asked for."""

    def __contains__(self, name: object) -> bool:
        """Whether it is there already."""

    def __getitem__(self, name: str) -> Drafter:
        """InputError where there is nothing of that name."""


class NoDraft:
    """Plain decoding."""

    def start(self, context: DraftContext) -> None:
        """See Drafter."""

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        return [root_only(context.root) for context in contexts]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""

    def finish(self, sequence: int) -> None:
        """See Drafter."""
