"""Drafts copied from text that is already there: one drafter for every kind of index.

PLD, CASD's copier and IGPG differ in the index and its numbers alone; `auto` adds calibration and
the rule of what pays. Sources are indexed in the order documents, prediction, prompt, output, with
a border after each, so nothing is ever continued across texts or out of the chat template.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graft.draft.budget import Choose
from graft.draft.calibration import PRIOR, Calibration
from graft.draft.drafter import Budget, DraftContext
from graft.match.matches import Matches, TokenIndex
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, in_level_order, root_only

COPYING = 6  # tokens at a text's end that stood somewhere before: it looks like a copy
SOURCES = ("", "document", "prediction", "prompt", "output", "store")


@dataclass(slots=True)
class _Text:
    """A sequence's indexed text: which stretch came from where, and the last proposal."""

    index: TokenIndex
    calibration: Calibration
    starts: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    length: int = 0
    matches: Matches | None = None

    def add(self, tokens: list[int], source: str, *, border: bool = True) -> None:
        if not tokens:
            return
        self.starts.append(self.length)
        self.names.append(SOURCES.index(source))
        self.index.extend(np.array(tokens, np.int32))
        self.length += len(tokens)
        if border:
            self.index.border()
            self.length += 1

    def sources(self, positions: np.ndarray) -> list[int]:
        return [self._source(place) for place in positions.tolist()]

    def _source(self, place: int) -> int:
        """What stands at a place of the indexed text; what stands in none is from a datastore."""
        if place < 0:
            return SOURCES.index("store")
        return self.names[bisect_right(self.starts, place) - 1]


class LookupDrafter:
    """Guesses what followed the end of the text before.

    Matches are trusted by `prior` at first and, if `calibrated`, by what comes true.
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
        text = _Text(self._make_index(), Calibration(self._prior))
        for document in context.documents:
            text.add(document, "document")
        text.add(context.prediction, "prediction")
        for first, last in context.quotable:
            # A prompt that ends in content is what the output continues: no border there.
            text.add(context.prompt[first:last], "prompt", border=last < len(context.prompt))
        text.starts.append(text.length)
        text.names.append(SOURCES.index("output"))
        text.index.extend(np.array(context.tokens, np.int32))
        self._texts[context.sequence] = text

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        limit = min(self._nodes, budget.nodes)
        texts = [self._texts[context.sequence] for context in contexts]
        for text in texts:
            text.matches = text.index.lookup(limit, text.calibration.confidence())
        counts = self._choose([text.matches.scores for text in texts], budget)
        return [
            _as_tree(context.root, text, kept)
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
        )

    def is_copying(self, sequence: int) -> bool:
        """Whether the end of the text stood there before, as far as a suffix automaton sees."""
        return self._texts[sequence].index.match_length >= COPYING

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            text = self._texts[step.sequence]
            if text.matches is not None and self._calibrated:
                text.calibration.observe(text.matches, step.tokens)
            text.matches = None
            text.index.extend(np.array(step.tokens, np.int32))
            text.length += len(step.tokens)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._texts.pop(sequence, None)


def _as_tree(root: int, text: _Text, kept: int) -> DraftTree:
    """The first (and best) `kept` continuations hung under the root."""
    if kept == 0:
        return root_only(root)
    matches = text.matches
    return in_level_order(
        np.concatenate([[root], matches.tokens[:kept]]),
        np.concatenate([[-1], matches.parents[:kept] + 1]),
        np.concatenate([[1.0], matches.scores[:kept]]),
        np.array([0, *text.sources(matches.positions[:kept])]),
        SOURCES,
    )
