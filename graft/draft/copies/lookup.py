"""Drafts copied from existing text: one drafter for every kind of index.

PLD, CASD's copier and IGPG differ only in the index and its numbers; `auto` adds calibration and
the cost limit. `texts.py` defines the texts and the order in which they are indexed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graft.draft.copies.build_tree import tree_of
from graft.draft.copies.calibration import PRIOR, Calibration
from graft.draft.copies.texts import SOURCES, Layout, TextSpan, text_spans
from graft.draft.drafter import Budget, DraftContext, options_of
from graft.draft.pacing.budget import Choose
from graft.match.matches import Matches, TokenIndex
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

MAX_CONTEXT = 64  # last tokens of the output that are matched where it is not indexed


@dataclass(slots=True)
class _Text:
    """A sequence's indexed text, the starts and kinds of its spans (`build_tree.py`), and the last
    proposal. New tokens are indexed at the next lookup, or, if `grows` is false, only matched."""

    indexed: TokenIndex
    calibration: Calibration
    starts: np.ndarray  # [S] int64
    kinds: np.ndarray  # [S] int16
    grows: bool
    matches: Matches | None = None
    new_tokens: list[int] = field(default_factory=list)
    # Proposals that the calibration has not seen yet, with the tokens committed after each
    verified: list[tuple[Matches, list[int]]] = field(default_factory=list)

    def lookup(self, limit: int, path: Sequence[int] = ()) -> Matches:
        """At most `limit` continuations of all committed tokens and the draft tokens `path`."""
        if self.grows and self.new_tokens:
            self.indexed.extend(self.new_tokens)
            self.new_tokens.clear()
        after = [*self.new_tokens[-MAX_CONTEXT:], *path]
        return self.indexed.lookup(limit, self.calibration.rates, after)

    def calibrate(self, keep_last: int = 0) -> None:
        """Update the calibration with all verified proposals but the `keep_last` last."""
        while len(self.verified) > keep_last:
            self.calibration.observe(*self.verified.pop(0))

    def tree(self, root: int, matches: Matches, count: int) -> DraftTree:
        """The `count` best matches below the root."""
        if count == 0:
            return root_only(root)
        return tree_of(root, matches, count, self.starts, self.kinds)


class LookupDrafter:
    """Proposes the tokens that followed earlier occurrences of the text's end.

    Acceptance is estimated by `prior` at first and, if `calibrated`, updated by the proposals up to
    the last but one: the last is counted while the next step runs (`update_async`). `spans`
    are the texts to index; nothing is copied from the output if it is not one of them. A
    `make_index` that uses numbers of the request names them (see TakesOptions).
    """

    def __init__(
        self,
        make_index: Callable[[DraftContext], TokenIndex],
        choose: Choose,
        *,
        nodes: int,
        calibrated: bool,
        prior: np.ndarray = PRIOR,
        spans: Callable[[DraftContext], list[TextSpan]] = text_spans,
    ) -> None:
        self._make_index, self._choose, self._spans = make_index, choose, spans
        self._nodes, self._calibrated, self._prior = nodes, calibrated, prior
        self._texts: dict[int, _Text] = {}

    @property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return options_of(self._make_index)

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        spans, index = self._spans(context), self._make_index(context)
        for span in spans:
            index.extend(np.array(span.tokens, np.int32))
            if span.bordered:
                index.border()
        kinds = np.array([SOURCES.index(span.source) for span in spans], np.int16)
        starts = np.array(Layout(spans).starts, np.int64)
        grows = bool(spans) and spans[-1].source == "output"
        text = _Text(index, Calibration(self._prior), starts, kinds, grows)
        if not grows:
            text.new_tokens += context.tokens
        self._texts[context.sequence] = text

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        texts = [self._texts[context.sequence] for context in contexts]
        for text in texts:
            text.calibrate(keep_last=1)
        found, counts = self._search(texts, budget)
        for text, matches in zip(texts, found, strict=True):
            text.matches = matches
        return [
            text.tree(context.root, matches, count)
            for context, text, matches, count in zip(contexts, texts, found, counts, strict=True)
        ]

    def has_draft(self, contexts: list[DraftContext], budget: Budget) -> bool:
        """Whether `propose` would draft anything after the tokens observed so far."""
        _, counts = self._search([self._texts[context.sequence] for context in contexts], budget)
        return any(counts)

    def _search(self, texts: list[_Text], budget: Budget) -> tuple[list[Matches], list[int]]:
        """The matches of each text, and how many of them to draft."""
        limit = min(self._nodes, budget.nodes)
        found = [text.lookup(limit) for text in texts]
        if not any(map(len, found)):
            return found, [0] * len(found)
        return found, self._choose([matches.scores for matches in found], budget)

    def propose_after(self, context: DraftContext, path: Sequence[int], nodes: int) -> DraftTree:
        """At most `nodes` continuations of draft tokens, rooted at the last of them."""
        text = self._texts[context.sequence]
        matches = text.lookup(min(self._nodes, nodes), path)
        return text.tree(path[-1], matches, len(matches))

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            text = self._texts[step.sequence]
            text.new_tokens += step.tokens
            if text.matches is not None:
                if self._calibrated:
                    text.verified.append((text.matches, step.tokens))
                text.matches = None

    def update_async(self) -> None:
        """See UpdatesAsync."""
        for text in self._texts.values():
            text.calibrate()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._texts.pop(sequence, None)
