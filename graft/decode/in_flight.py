"""A step in flight: its inputs, and what happens when its logits arrive.

No sequence changes between `launch` and `complete`, so a step in flight may be dropped at any time.
"""

from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from graft.decode.sequence import Sequence
from graft.draft.drafter import by_drafter
from graft.models.language_model import LanguageModel, TargetStep
from graft.tree.draft_tree import DraftTree, chain, root_only
from graft.verify.draws import Draws, SamplerNodes
from graft.verify.verdict import Verifier

_LAST_NODE = root_only(0)  # a prompt chunk has logits after its last token alone


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Part:
    """One sequence's part of a step: a draft tree, or a prompt chunk as a chain."""

    sequence: Sequence
    tree: DraftTree
    first: int  # of its nodes, among all nodes of the step
    prefill: bool = False

    @property
    def sampler_nodes(self) -> SamplerNodes:
        """The nodes to sample a token at, and the sampler; None for a chunk inside a prompt."""
        if not self.prefill:
            return self.sequence.sampler, self.tree
        return self.sequence.sampler if self._ends_prompt else None, _LAST_NODE

    def verify(
        self, logits: Tensor, drawn: Several[int] | None, verify: Verifier
    ) -> tuple[list[int], list[int]]:
        """The nodes to commit and the tokens that became final."""
        sequence = self.sequence
        if not self.prefill:
            verdict = (sequence.verify or verify)(self.tree, logits, sequence.sampler, drawn)
            return verdict.path, sequence.append(self.tree, verdict, logits)
        tokens = [sequence.append_first(logits, drawn)] if self._ends_prompt else []
        return list(range(len(self.tree))), tokens

    @property
    def yields_first_token(self) -> bool:
        """Whether it yields the first token of a streamed answer."""
        streams = self.sequence.streaming and not self.sequence.finished  # else it has no extent
        return self.prefill and streams and self._ends_prompt

    @property
    def _ends_prompt(self) -> bool:
        return self.sequence.held_extent.total + len(self.tree) == len(self.sequence.context.prompt)


def step_parts(
    chunks: Several[tuple[Sequence, list[int]]], decoding: list[Sequence], trees: list[DraftTree]
) -> list[Part]:
    """The parts of a step: prompt chunks, then the draft trees of decoding sequences."""
    chains = [(sequence, chain(chunk)) for sequence, chunk in chunks]
    pairs = [*chains, *zip(decoding, trees, strict=True)]
    first = accumulate((len(tree) for _, tree in pairs), initial=0)
    return [
        Part(sequence, tree, start, prefill=place < len(chains))
        for place, ((sequence, tree), start) in enumerate(zip(pairs, first, strict=False))
    ]


Verified = tuple[Part, list[int], list[int]]  # a part, its committed nodes, its final tokens


@dataclass(slots=True)
class InFlightStep:
    """`logits` has one tensor per part; `draws` are their sampled tokens if the device samples.

    `since` is when the step began.
    """

    parts: list[Part]
    logits: list[Tensor]
    draws: Draws | None
    since: float

    @property
    def yields_first_token(self) -> bool:
        """Whether it yields the first token of a streamed answer; known before it completes."""
        return any(part.yields_first_token for part in self.parts)

    @property
    def needed(self) -> bool:
        """Whether any of its sequences is still running."""
        return any(not part.sequence.finished for part in self.parts)

    @property
    def plain(self) -> bool:
        """Whether it decodes one token of every sequence, without drafts and prompt chunks."""
        return all(len(part.tree) == 1 and not part.prefill for part in self.parts)

    def fill_roots(self) -> None:
        """The tokens of the step before are known now."""
        for part in self.parts:
            if not part.sequence.finished:
                part.tree = root_only(part.sequence.context.tokens[-1])

    def complete(self, model: LanguageModel, verify: Verifier) -> None:
        """Wait for the logits, verify, commit, and let the drafters observe the final tokens.

        Sequences that finished in the meantime are skipped.
        """
        verified: list[Verified] = []
        try:
            self._verify(verify, verified)
        finally:  # after an interrupt, too: these sequences already have their tokens
            model.commit_all([(part.sequence.held_extent, path) for part, path, _ in verified])
            for part, _, _ in verified:
                if part.prefill:
                    with part.sequence.guard():
                        part.sequence.store_rows(model)
            for drafter, places in by_drafter(verified, lambda each: each[0].sequence.drafter):
                drafter.observe([_target_step(*verified[i]) for i in places])

    def _verify(self, verify: Verifier, verified: list[Verified]) -> None:
        drawn = self.draws.wait() if self.draws else [None] * len(self.parts)
        for part, logits, tokens in zip(self.parts, self.logits, drawn, strict=True):
            if not part.sequence.finished:
                with part.sequence.guard():
                    verified.append((part, *part.verify(logits, tokens, verify)))

    def emit(self) -> None:
        """Make texts, events and statistics of the completed step."""
        for part in self.parts:
            with part.sequence.guard():
                part.sequence.emit()

    def record_time(self, until: float) -> None:
        """Add the step's whole time to each of its sequences."""
        for part in self.parts:
            if part.prefill:
                part.sequence.stats.prefill_seconds += until - self.since
            else:
                part.sequence.stats.decode_seconds += until - self.since


def score_parts(model: LanguageModel, parts: list[Part], since: float) -> InFlightStep:
    """Run the target over all nodes; the device also samples where it computes on its own."""
    logits, counts = model.score_all(
        [part.sequence.held_extent for part in parts],
        [part.tree for part in parts],
        last_only=[part.prefill for part in parts],
    )
    on_device = model.asynchronous or logits.is_cuda
    draws = Draws([part.sampler_nodes for part in parts], logits) if on_device else None
    return InFlightStep(parts, list(logits.split(counts)), draws, since)


def _target_step(part: Part, path: list[int], tokens: list[int]) -> TargetStep:
    sequence = part.sequence
    nodes = [part.first + node for node in path]
    return TargetStep(sequence.context.sequence, tokens, nodes, sequence.extent)
