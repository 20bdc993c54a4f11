"""Drafts copied from text that is already there: one drafter for every kind of index.

PLD, CASD's copier and IGPG differ in the index and its numbers alone; `auto` adds calibration and
the rule of what pays. What they copy from, and in which order it is indexed, says `texts.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graft.draft.copies.build_tree import hung, source_at
from graft.draft.copies.calibration import PRIOR, Calibration
from graft.draft.copies.texts import NOWHERE, SOURCES, Layout, stretches
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import Choose
from graft.match.matches import Matches, TokenIndex
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, in_level_order, root_only

COPYING = 6  # tokens at a text's end that stood somewhere before: it looks like a copy


@dataclass(slots=True)
class _Text:
    """A sequence's indexed text: where its stretches begin and what they are (`hanging.py`), the
    last proposal, and those that are not learned from yet, with what came. What came in rounds
    without one is indexed when somebody asks."""

    indexed: TokenIndex
    calibration: Calibration
    starts: np.ndarray  # [S] int64
    kinds: np.ndarray  # [S] int16
    matches: Matches | None = None
    late: list[int] = field(default_factory=list)
    tried: list[tuple[Matches, list[int]]] = field(default_factory=list)

    @property
    def index(self) -> TokenIndex:
        """Of everything that came so far."""
        if self.late:
            self.indexed.extend(self.late)
            self.late.clear()
        return self.indexed

    def learn(self, but: int = 0) -> None:
        """From the proposals that were held against the text, `but` the last."""
        while len(self.tried) > but:
            self.calibration.observe(*self.tried.pop(0))

    def tree(self, root: int, kept: int) -> DraftTree:
        """The best of the last proposal."""
        if kept == 0:
            return root_only(root)
        return hung(root, self.matches, kept, self.starts, self.kinds)

    def sources(self, positions: np.ndarray) -> list[int]:
        return [source_at(place, self.starts, self.kinds) for place in positions.tolist()]


class LookupDrafter:
    """Guesses what followed the end of the text before.

    Matches are trusted by `prior` at first and, if `calibrated`, by what comes true: by what the
    last round but one showed, so that the last can be learned from while the next is on its way.
    """

    def __init__(
        self,
        make_index: Callable[[], TokenIndex],
        choose: Choose,
        *,
        nodes: int,
        calibrated: bool,
        prior: np.ndarray = PRIOR,
    ) -> None:
        self._make_index, self._choose = make_index, choose
        self._nodes, self._calibrated, self._prior = nodes, calibrated, prior
        self._texts: dict[int, _Text] = {}

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        parts, index = stretches(context), self._make_index()
        for part in parts:
            index.extend(np.array(part.tokens, np.int32))
            if part.bordered:
                index.border()
        kinds = np.array([SOURCES.index(part.source) for part in parts], np.int16)
        starts = np.array(Layout(parts).starts, np.int64)
        text = _Text(index, Calibration(self._prior), starts, kinds)
        self._texts[context.sequence] = text

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        limit = min(self._nodes, budget.nodes)
        texts = [self._texts[context.sequence] for context in contexts]
        for text in texts:
            text.learn(but=1)
            text.matches = text.index.lookup(limit, text.calibration.confidence())
        counts = self._choose([text.matches.scores for text in texts], budget)
        return [
            text.tree(context.root, kept)
            for context, text, kept in zip(contexts, texts, counts, strict=True)
        ]

    def propose_after(
        self, context: DraftContext, path: list[int], scores: Sequence[float], nodes: int
    ) -> DraftTree:
        """What followed before, if `path` (accepted with these probabilities) came next: a tree of
        the path and at most `nodes` continuations of it. The index must be far-sighted."""
        text = self._texts[context.sequence]
        limit = min(self._nodes, nodes)
        matches = text.index.lookup_after(path, limit, text.calibration.confidence())
        if not len(matches):
            return root_only(context.root)
        count = len(path)
        return in_level_order(
            np.concatenate([[context.root], path, matches.tokens]),
            np.concatenate([np.arange(-1, count), matches.parents + 1 + count]),
            np.concatenate([[1.0], scores, scores[-1] * matches.scores]),
            np.array([0] * (count + 1) + text.sources(matches.positions)),
            SOURCES,
            np.concatenate([[NOWHERE] * (count + 1), matches.positions]),
        )

    def is_copying(self, sequence: int) -> bool:
        """Whether the end of the text stood there before, as far as a suffix automaton sees."""
        return self._texts[sequence].index.match_length >= COPYING

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            text = self._texts[step.sequence]
            text.late += step.tokens
            if text.matches is not None:
                if self._calibrated:
                    text.tried.append((text.matches, step.tokens))
                text.matches = None

    def update_async(self) -> None:
        """See UpdatesAsync."""
        for text in self._texts.values():
            text.learn()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._texts.pop(sequence, None)
