"""Drafts of a draft model: a chain (speculative decoding) or EAGLE-2's dynamic tree.

The draft model has its own KV cache. In each step it first processes the committed tokens it has
not cached yet, for all sequences in one forward, and then drafts level by level, one forward each.
The cost model (`cost_model.py`) decides how deep, and whether at all, unless a preset fixes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from graft.draft.drafter import Budget, DraftContext
from graft.draft.models.cache import DraftCache
from graft.draft.models.cost_model import CostModel, Costs, NoCostLimit
from graft.draft.models.growth import Growth
from graft.draft.models.partial_draft import SOURCE, PartialDraft
from graft.draft.pacing.budget import best_by_cost, best_of, up_to_limit
from graft.draft.pacing.trust import Experience, Trust
from graft.models.language_model import LanguageModel, TargetStep
from graft.models.step_costs import StepCosts
from graft.tree.draft_tree import DraftTree, chain, root_only
from graft.tree.prune import shallow

UNCERTAIN_GAIN = 2.0  # `min_gain` where the expected saving may be wrong


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model with its measured step costs and the size of the target's vocabulary.

    `overhead` are the seconds of a level beyond its step; `source` names its draft tokens in
    statistics."""

    model: LanguageModel
    costs: StepCosts
    vocabulary: int
    overhead: float = 0.0
    source: str = SOURCE

    def fit_vocabulary(self, logits: Tensor) -> Tensor:
        """Logits of exactly the target's ids: others are never drafted."""
        missing = self.vocabulary - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self.vocabulary]


@dataclass(slots=True)
class SequenceState:
    """A sequence that is drafted for, and its last draft."""

    cache: DraftCache
    trust: Trust
    trial_credit: float = 0.0  # seconds that its next trial may cost
    draft: PartialDraft | None = None
    tree: DraftTree | None = None  # of the draft, before pruning

    def clear_draft(self) -> None:
        """Forget the last draft."""
        self.draft = self.tree = None


class ModelDrafter:
    """Drafts with another language model.

    An `adaptive` one drafts while the cost model expects to save time. It prefills a prompt if
    drafts are expected to save more than `min_gain` times the prefill's cost. `prefill_at_once`
    gives every step a draft; otherwise prompts are prefilled in chunks between steps.
    """

    def __init__(
        self,
        draft_model: DraftModel,
        growth: Growth,
        *,
        nodes: int,
        adaptive: bool,
        min_gain: float = 0.0,
        prefill_at_once: bool = False,
    ) -> None:
        self._draft_model, self._model, self._growth = draft_model, draft_model.model, growth
        self._nodes, self._adaptive, self._min_gain = nodes, adaptive, min_gain
        self._prefill_at_once = prefill_at_once
        self._choose = best_by_cost if adaptive else up_to_limit
        self._states: dict[int, SequenceState] = {}
        self._experience = Experience()
        self._prefill_credit = 0.0  # seconds that the prefill of a trial may cost

    @property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return self._growth.options

    def start(self, context: DraftContext) -> None:
        """See Drafter. Nothing is drafted before the prompt is prefilled."""
        trust = Trust(self._experience)
        self._states[context.sequence] = SequenceState(self._open_cache(context), trust)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        states = [self._states[context.sequence] for context in contexts]
        for each in states:
            each.clear_draft()
        if budget.nodes:
            depth, scratch = self._growth.depth, self._growth.scratch
            wanted = [each for each in states if each.cache.context.max_tokens(depth)]
            self._draft([each for each in wanted if each.cache.prepare(depth, scratch)], budget)
        for each in states:
            each.tree = each.draft.tree() if each.draft else None
        whole = [
            each.tree or root_only(context.root)
            for each, context in zip(states, contexts, strict=True)
        ]
        max_nodes = min(self._nodes, budget.nodes)
        if self._growth.sampled:
            return [shallow(tree, max_nodes) for tree in whole]
        return best_of(whole, self._choose, replace(budget, nodes=max_nodes))

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            each = self._states[step.sequence]
            each.cache.follow(step.extent)
            if each.tree and each.draft:
                each.trust.observe(each.tree, each.draft.token_probs, step.tokens)
                each.clear_draft()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        each = self._states.get(sequence)
        if each:
            self._experience.ended(len(each.cache.context.tokens))
            self.detach(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable."""
        self._states.pop(sequence).cache.close()

    def first_tokens(self, sequence: int) -> list[int]:
        """See Guide."""
        tree = self._states[sequence].tree
        return tree.tokens[tree.parents == 0].tolist() if tree else []  # best first: see Growth

    def _open_cache(self, context: DraftContext) -> DraftCache:
        return DraftCache(self._model, context)

    def _draft(self, ready: list[SequenceState], budget: Budget) -> None:
        """Draft for the sequences that the cost model selects."""
        if not ready:
            return
        costs: Costs = NoCostLimit()
        if self._adaptive:
            length = sum(each.cache.visible for each in ready) // len(ready)
            model = self._draft_model
            costs = CostModel(budget, model.costs, length, overhead=model.overhead)
        if self._prefill_at_once:
            self._prefill_prompts(ready)
        begun = self._begin(ready, costs)
        if begun is None:
            return
        growing, logits = begun
        started = list(growing)
        while growing:
            logits = self._draft_model.fit_vocabulary(logits)
            levels = self._levels_ahead(growing, costs)
            score = partial(self._score_on_device, growing, costs)
            self._growth.extend(growing, logits, levels, score)
            costs.set_draft([np.array(draft.scores[1:]) for draft in started])
            growing = self._select_growing(growing, costs)
            if growing:
                rows = sum(self._growth.rows(draft) for draft in growing)
                costs.add_forward(rows, len(growing))
                logits = self._growth.score(self._model, growing)

    def _score_on_device(self, growing: list[PartialDraft], costs: Costs, tokens: Tensor) -> Tensor:
        """See ScoreOnDevice. The host knows the rows, not the tokens in them."""
        extents = [draft.cache.held_extent for draft in growing]
        logits = self._model.score_drawn(extents, tokens)
        self._model.commit_all([(extent, [0]) for extent in extents])
        costs.add_forward(len(extents), len(extents))
        return self._draft_model.fit_vocabulary(logits)

    def _levels_ahead(self, growing: list[PartialDraft], costs: Costs) -> int:
        """Levels to grow before the host looks at the tokens: more than one where the device works
        asynchronously."""
        left = min(self._growth.levels_left(draft) for draft in growing)
        if left < 2 or not (self._model.asynchronous and self._growth.grows_ahead(growing)):
            return 1
        acceptance = sum(draft.trust.expected_rate for draft in growing) / len(growing)
        return costs.best_depth(left, len(growing), acceptance)

    def _prefill_prompts(self, ready: list[SequenceState]) -> None:
        """Prefill all uncached tokens but the last of sequences whose prompts are not cached."""
        for cache in [each.cache for each in ready if each.cache.prefilling]:
            while cache.uncached > 1:
                chunk = cache.next_chunk(min(self._model.chunk, cache.uncached - 1))
                self._model.prefill_chunk(cache.held_extent, chunk)
                cache.cached += len(chunk)

    def _select_growing(self, drafts: list[PartialDraft], costs: Costs) -> list[PartialDraft]:
        """The drafts that get one more level."""
        growing = [draft for draft in drafts if self._growth.can_grow(draft)]
        gains = [draft.reach * draft.trust.expected_rate for draft in growing]
        rows = [self._growth.rows(draft) for draft in growing]
        return [growing[place] for place in sorted(costs.select(gains, rows))]

    def _begin(
        self, ready: list[SequenceState], costs: Costs
    ) -> tuple[list[PartialDraft], Tensor] | None:
        """Process uncached tokens; an empty draft for each sequence without any left, and the
        logits after their roots."""
        chunks = self._chunks(self._select(ready, costs))
        if not chunks:
            return None
        logits, _ = self._model.score_all(
            [each.cache.held_extent for each, _ in chunks],
            [chain(chunk) for _, chunk in chunks],
            last_only=[True] * len(chunks),
        )
        decoding = [len(chunk) for each, chunk in chunks if not each.cache.prefilling]
        costs.add_forward(sum(decoding), max(len(decoding), 1))
        drafts, complete = [], []
        for place, (each, chunk) in enumerate(chunks):
            if self._commit(each.cache, chunk):
                each.draft = PartialDraft(each.cache, each.trust, self._draft_model.source)
                drafts.append(each.draft)
                complete.append(place)
        return drafts, logits[complete]

    def _select(self, ready: list[SequenceState], costs: Costs) -> list[SequenceState]:
        """The sequences to process: those expected to save time, those due for a trial, and last,
        because they fill the chunk, those to prefill."""
        decoding = [each for each in ready if not each.cache.prefilling]
        rows = [each.cache.uncached for each in decoding]
        faster = set(costs.select([each.trust.expected_rate for each in decoding], rows))
        selected = []
        for place, each in enumerate(decoding):
            each.trial_credit += costs.trial_seconds
            if place in faster or each.trial_credit >= costs.forward_seconds(rows[place]):
                each.trial_credit = 0.0
                selected.append(each)
        prefilling = [each for each in ready if each.cache.prefilling]
        return selected + self._select_prefills(prefilling, costs)

    def _select_prefills(
        self, prefilling: list[SequenceState], costs: Costs
    ) -> list[SequenceState]:
        """The prompts to prefill: all whose drafts are expected to save enough, otherwise now and
        then one of a new request as a trial."""
        if not prefilling:
            return []
        acceptance, answer = self._experience.expected_rate, self._experience.answer
        saved = costs.saved_seconds(self._growth.depth, len(prefilling), acceptance) * answer
        selected = [
            each
            for each in prefilling
            if saved > self._min_gain * costs.forward_seconds(each.cache.uncached)
        ]
        if selected:
            return selected
        self._prefill_credit += costs.trial_seconds * len(self._states)
        begun = [each for each in prefilling if each.cache.cached]
        for each in prefilling:
            seconds = costs.forward_seconds(each.cache.uncached)
            new = len(each.cache.context.tokens) <= 1
            if not begun and new and self._prefill_credit >= seconds:
                self._prefill_credit -= seconds
                begun = [each]
        return begun

    def _chunks(self, selected: Sequence[SequenceState]) -> list[tuple[SequenceState, list[int]]]:
        """The tokens to process of each, together at most one prefill chunk."""
        chunks, tokens_left = [], self._model.chunk
        for each in selected:
            chunk = each.cache.next_chunk(tokens_left)
            if chunk:
                chunks.append((each, chunk))
                tokens_left -= len(chunk)
        return chunks

    def _commit(self, cache: DraftCache, chunk: list[int]) -> bool:
        """Keep the rows of a chunk; whether all committed tokens are cached now.

        The root counts as a draft token, so its row is dropped if the draft is not used.
        """
        complete = len(chunk) == cache.uncached
        kept = len(chunk) - (complete and not self._growth.keeps_root)
        if kept:
            self._model.commit(cache.held_extent, list(range(kept)))
        cache.cached += len(chunk) - complete
        if complete and self._growth.keeps_root:
            cache.drafted = [chunk[-1]]
        return complete
