"""A step on its way: what was sent to the device, and what is done with what comes back.

Between sending and landing nothing in a sequence changes, so a flight may be dropped at any time:
it is then as if it had never been sent.
"""

from collections import defaultdict
from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from graft.decode.sequence import Sequence
from graft.draft.drafter import Drafter
from graft.models.language_model import LanguageModel, TargetStep
from graft.tree.draft_tree import DraftTree, root_only
from graft.verify.draws import Asked, Draws
from graft.verify.verdict import Verifier

_AFTER_PROMPT = root_only(0)  # a piece of a prompt has logits after its last token alone


@dataclass(slots=True)  # frozen ones take three times as long to make
class Part:
    """One sequence's share of a step: a tree, or the next piece of its prompt as a chain."""

    sequence: Sequence
    tree: DraftTree
    first: int  # of its nodes, among all of the step
    reads: bool = False

    @property
    def asked(self) -> Asked:
        """Where to draw, and for whom."""
        if not self.reads:
            return self.sequence.sampler, self.tree
        return self.sequence.sampler if self._ends_prompt else None, _AFTER_PROMPT

    def settle(
        self, logits: Tensor, drawn: Several[int] | None, verify: Verifier
    ) -> tuple[list[int], list[int]]:
        """The nodes to keep and the tokens that became final."""
        sequence = self.sequence
        if not self.reads:
            verdict = verify(self.tree, logits, sequence.sampler, drawn)
            return verdict.path, sequence.take(self.tree, verdict, logits)
        tokens = [sequence.begin(logits, drawn)] if self._ends_prompt else []
        return list(range(len(self.tree))), tokens

    @property
    def begins(self) -> bool:
        """Whether the first token of an answer comes after it, and somebody may wait for that."""
        waited_for = self.sequence.heard and not self.sequence.over  # who left has no rows
        return self.reads and waited_for and self._ends_prompt

    @property
    def _ends_prompt(self) -> bool:
        return self.sequence.extent.total + len(self.tree) == len(self.sequence.context.prompt)


def place_side_by_side(
    reading: Several[tuple[Sequence, DraftTree]], writing: Several[tuple[Sequence, DraftTree]]
) -> list[Part]:
    """The parts of a step: pieces of prompts, then trees."""
    pairs = [*reading, *writing]
    first = accumulate((len(tree) for _, tree in pairs), initial=0)
    return [
        Part(sequence, tree, start, reads=place < len(reading))
        for place, ((sequence, tree), start) in enumerate(zip(pairs, first, strict=False))
    ]


Settled = tuple[Part, list[int], list[int]]  # whose, the nodes kept, the tokens now final


@dataclass(slots=True)
class InFlightStep:
    """`logits` are those of each part; `draws` of all of them, where they are made ahead; its time
    counts from `since`."""

    parts: list[Part]
    logits: list[Tensor]
    draws: Draws | None
    since: float

    @property
    def begins(self) -> bool:
        """Whether it brings the first token of an answer; asked before it lands."""
        return any(part.begins for part in self.parts)

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for what it brings."""
        return any(not part.sequence.over for part in self.parts)

    def land(self, model: LanguageModel, verify: Verifier) -> None:
        """Wait for the outcome, verify and commit; then the drafters see what became final.

        Those who left meanwhile are passed over.
        """
        settled: list[Settled] = []
        try:
            self._settle(verify, settled)
        finally:  # an interrupt is no reason to lose what others have already taken in
            model.commit_all([(part.sequence.extent, path) for part, path, _ in settled])
            for part, _, _ in settled:
                if part.reads:
                    with part.sequence.guard():
                        part.sequence.keep_rows(model)
            for drafter, places in by_drafter([part.sequence for part, _, _ in settled]):
                drafter.observe([_shown(*settled[i]) for i in places])

    def _settle(self, verify: Verifier, settled: list[Settled]) -> None:
        """Decide for everybody, one after the other."""
        drawn = self.draws.wait() if self.draws else [None] * len(self.parts)
        for part, logits, known in zip(self.parts, self.logits, drawn, strict=True):
            if not part.sequence.over:
                with part.sequence.guard():
                    settled.append((part, *part.settle(logits, known, verify)))

    def tell(self) -> None:
        """Make texts, events and statistics of what has landed."""
        for part in self.parts:
            with part.sequence.guard():
                part.sequence.tell()

    def charge(self, until: float) -> None:
        """Its time is counted whole for each of those who shared it."""
        for part in self.parts:
            if part.reads:
                part.sequence.stats.prefill_seconds += until - self.since
            else:
                part.sequence.stats.decode_seconds += until - self.since


def _shown(part: Part, path: list[int], tokens: list[int]) -> TargetStep:
    sequence = part.sequence
    nodes = [part.first + node for node in path]
    return TargetStep(sequence.context.sequence, tokens, nodes, sequence.extent)


def by_drafter(sequences: list[Sequence]) -> list[tuple[Drafter, list[int]]]:
    """Every drafter once, with the places of its sequences."""
    if sequences and all(each.drafter is sequences[0].drafter for each in sequences):
        return [(sequences[0].drafter, list(range(len(sequences))))]
    places: dict[int, list[int]] = defaultdict(list)
    for i, sequence in enumerate(sequences):
        places[id(sequence.drafter)].append(i)
    return [(sequences[own[0]].drafter, own) for own in places.values()]
