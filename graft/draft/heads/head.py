"""Drafts of a head for the target: EAGLE's, LongSpec's, or an MTP layer of its checkpoint.

A head predicts from the target's hidden states (EAGLE) or from its KV cache (LongSpec), so it
processes every committed token too. A draft then grows a tree for all sequences at once
(`growth.py`), of the paper's shape or of the one that is expected to be fastest (`shapes.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.draft.drafter import Budget, DraftContext, PendingTrees
from graft.draft.heads.growth import (
    Beam,
    Candidates,
    DraftInput,
    Growth,
    LaunchedGrowth,
    PendingCandidates,
)
from graft.draft.heads.ranks import Ranks
from graft.draft.heads.shapes import TRIAL, ShapeChooser, Trial
from graft.draft.pacing.budget import best_by_cost, best_of, up_to_limit
from graft.draft.pacing.trust import Experience, Trust
from graft.machine import has_triton
from graft.models.arena import BLOCK, Extent
from graft.models.heads.config import MTP
from graft.models.heads.runner import HeadRunner, Memory, Text
from graft.models.language_model import TargetStep
from graft.models.step_costs import StepCosts
from graft.models.storage import RowStorage
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import keep_ascending
from graft.tree.relations import path_products, strongest_nodes

SOURCE = "head"
REPLAN_EVERY = 8  # drafts between two choices of a shape: a choice takes as long as a small step
SAMPLE_EVERY = 8  # where drafts are too slow, one of so many sequences is still drafted for
MAX_PENDING = 4096  # features kept for the next draft; more are processed at once
EAGLE_BEAM = Beam((10,) * 6, 10, keeps_all=True)
EAGLE_NODES = 59
# EAGLE-3's paper has 8 levels of 10; a captured draft holds 64 nodes above its last level.
EAGLE3_BEAM = Beam((10, *(9,) * 7), 10, keeps_all=True)
LONGSPEC_BEAM = Beam((4, 16, 16, 16, 16), 16, keeps_all=False)
LONGSPEC_NODES = 63  # the paper's 68 would not fit `decode.loop.MAX_NODES`
BEAMS = {
    "eagle3": (EAGLE3_BEAM, EAGLE_NODES),
    "eagle2": (EAGLE_BEAM, EAGLE_NODES),
    "longspec": (LONGSPEC_BEAM, LONGSPEC_NODES),
    MTP: (EAGLE_BEAM, EAGLE_NODES),
}


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head, how its trees grow, and its measured costs: of a level, and of the rest of a draft
    by sequences."""

    runner: HeadRunner
    growth: Growth
    costs: StepCosts
    overhead: StepCosts | None = None


def growth_for(runner: HeadRunner) -> Growth:
    """The fastest way to grow a head's trees on its device."""
    rows = (runner.storage, runner.model.arena.storage)
    if runner.device.type != "cuda" or not all(isinstance(each, RowStorage) for each in rows):
        return LaunchedGrowth(runner)
    if not has_triton() or not runner.config.plain_attention:
        return LaunchedGrowth(runner)
    from graft.draft.heads.graphed import GraphedGrowth

    return GraphedGrowth(runner)


@dataclass(slots=True)
class _SequenceState:
    """A sequence and its last draft."""

    context: DraftContext
    trust: Trust
    ranks: Ranks
    skipped: bool  # no features are stored and nothing is drafted
    memory: Memory | None = None
    extent: Extent | None = None  # the target's rows
    features: list[Tensor] = field(default_factory=list)  # not processed yet
    num_features: int = 0
    features_end: int = 0  # tokens up to the last feature
    last_feature: Tensor | None = None  # the last one processed
    tree: DraftTree | None = None
    token_probs: list[float] | None = None  # the head's, of the tree's nodes
    first: tuple[np.ndarray, np.ndarray] | None = None  # tokens below the root, and their probs

    @property
    def length(self) -> int:
        """Committed tokens: prompt and output."""
        return len(self.context.prompt) + len(self.context.tokens)

    def text(self, first: int, last: int) -> list[int]:
        """Tokens at positions first .. last - 1."""
        prompt = self.context.prompt
        behind = max(0, first - len(prompt)), max(0, last - len(prompt))
        return prompt[first:last] + self.context.tokens[slice(*behind)]

    def clear_draft(self) -> None:
        self.tree = self.token_probs = self.first = None


class HeadDrafter:
    """Drafts with a head; without a `beam` the shape with the highest expected rate."""

    def __init__(self, head: DraftHead, beam: Beam | None = None, *, nodes: int) -> None:
        self._runner, self._growth, self._nodes = head.runner, head.growth, nodes
        self.begins_early = head.growth.asynchronous
        self._beam, self._shapes = beam, ShapeChooser(head.costs, head.overhead)
        self._choose = up_to_limit if beam else best_by_cost
        self._calibrated = beam is None
        self._states: dict[int, _SequenceState] = {}
        self._experience, self._ranks = Experience(), Ranks()
        # By sequences, nodes and base tokens: the draft, if it saves time, and the trial
        self._planned: dict[tuple[int, int, int], tuple[Beam | None, Trial]] = {}
        self._started, self._too_slow = 0, False
        self._verified: list[tuple[_SequenceState, DraftTree, list[float], list[int]]] = []
        self._drafts = 0
        self._credit = 0.0  # seconds that the next trial may lose

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        trust, ranks = Trust(self._experience), Ranks(self._ranks)
        self._started += 1
        skipped = self._too_slow and self._started % SAMPLE_EVERY != 0
        self._states[context.sequence] = _SequenceState(context, trust, ranks, skipped)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        return self.begin(contexts, budget)()

    def begin(self, contexts: list[DraftContext], budget: Budget) -> PendingTrees:
        """See BeginsEarly."""
        states = [self._states[context.sequence] for context in contexts]
        for each in states:
            each.clear_draft()
        ready = [each for each in states if each.extent is not None] if budget.nodes else []
        beam = self._beam or self._next_beam(ready, budget) if ready else None
        pending = self._begin(ready, beam.limited(budget.nodes)) if beam else None

        def trees() -> list[DraftTree]:
            if pending:
                self._draft(ready, pending, budget, is_trial=beam is TRIAL)
            whole = [each.tree or root_only(each.context.root) for each in states]
            return best_of(whole, self._choose, budget)

        return trees

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter. The target's features are valid until its next step: they are copied now
        and processed with the next draft."""
        steps = [step for step in steps if not self._states[step.sequence].skipped]
        states = [self._states[step.sequence] for step in steps]
        for each, step in zip(states, steps, strict=True):
            if each.tree and each.token_probs and step.tokens:
                self._verified.append((each, each.tree, each.token_probs, step.tokens))
                each.clear_draft()
        if self._runner.window is None and steps:
            self._store_features(states, steps)
        for each, step in zip(states, steps, strict=True):
            each.extent = step.extent

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        each = self._states.pop(sequence, None)
        if each:
            self._close(each)

    def _close(self, each: _SequenceState) -> None:
        """Give the head's rows back."""
        memory = each.memory
        if memory is None:
            return
        self._complete_blocks([each])
        self._runner.close(memory, each.text(0, memory.end + 1), each.context.salt)

    def _complete_blocks(self, states: Iterable[_SequenceState]) -> None:
        """Process features where they complete a block of rows, which others can share."""
        if not self._runner.model.prefixes.used:
            return
        complete = [
            each
            for each in states
            if each.memory
            and each.memory.end // BLOCK < (each.memory.end + each.num_features - 1) // BLOCK
        ]
        self._runner.read([self._next_text(each, keep_last=1) for each in complete])

    def first_tokens(self, sequence: int) -> list[int]:
        """See Guide."""
        first = self._states[sequence].first
        if first is None:
            return []
        tokens, probs = first
        return tokens[np.argsort(-probs, kind="stable")].tolist()

    def _next_beam(self, ready: list[_SequenceState], budget: Budget) -> Beam | None:
        """The fastest shape; where none saves time, now and then a trial."""
        key = _plan_key(ready, budget)
        if key not in self._planned:
            self._plan(ready, budget)
        beam, trial = self._planned[key]
        if beam is None:
            self._credit += trial.allowance
            if self._credit < trial.loss:
                return None
            self._credit, beam = 0.0, TRIAL
            del self._planned[key]  # plan again with the trial's result
        self._drafts += 1
        return beam

    def _plan(self, ready: list[_SequenceState], budget: Budget) -> None:
        """Choose the shape of drafts for batches like this one."""
        self._update_rates()
        ranks = [each.ranks for each in ready]
        length = sum(each.length for each in ready) // len(ready)
        beam = self._shapes.choose(ranks, length, budget)
        trial = self._shapes.trial(ranks, length, budget)
        self._planned[_plan_key(ready, budget)] = beam, trial
        if budget.base_tokens == len(ready):  # not beside other drafters' nodes
            self._too_slow = beam is None and trial.too_slow

    def _store_features(self, states: list[_SequenceState], steps: list[TargetStep]) -> None:
        """Copy the features of a step's committed tokens, for all sequences in one piece."""
        counts = [len(step.nodes) for step in steps]
        nodes = [node for step in steps for node in step.nodes]
        features = self._runner.model.features(nodes, self._runner.config.feature_layers)
        for each, step, own in zip(states, steps, features.split(counts), strict=True):
            assert step.extent is not None
            first = step.extent.total - len(step.nodes)
            if each.memory is None or first != each.features_end:  # earlier tokens have no features
                self._close(each)
                if first:
                    self._complete_blocks(self._states.values())
                text = each.text(0, max(step.extent.total, len(each.context.prompt)))
                each.memory = self._runner.open(text, first, each.context.salt)
                each.features, each.num_features = [], 0
                each.context.unseen = first - each.memory.extent.shared
            each.features_end = step.extent.total
            each.features.append(own)
            each.num_features += len(step.nodes)
        long = [each for each in states if each.num_features > MAX_PENDING]
        self._runner.read([self._next_text(each, keep_last=1) for each in long])

    def _begin(self, ready: list[_SequenceState], beam: Beam) -> PendingCandidates:
        """Start a draft of the beam's shape for each sequence."""
        inputs = [
            DraftInput(self._next_text(each), each.extent, each.context.sampler)
            for each in ready
            if each.extent
        ]
        return self._growth.begin(inputs, beam)

    def _draft(
        self,
        ready: list[_SequenceState],
        pending: PendingCandidates,
        budget: Budget,
        *,
        is_trial: bool,
    ) -> None:
        """Give each sequence a tree. Rates are updated while the device works."""
        if self._beam is None and not is_trial and self._drafts % REPLAN_EVERY == 0:
            self._plan(ready, budget)
        else:
            self._update_rates()
        candidates = pending()
        for place, each in enumerate(ready):
            self._build_tree(each, candidates, place)

    def _build_tree(self, each: _SequenceState, candidates: Candidates, place: int) -> None:
        """The best of a sequence's candidates become its tree."""
        probs = np.exp(candidates.logs[place])
        acceptance = each.trust.calibrated_all(probs) if self._calibrated else probs
        parents, tokens = candidates.parents[place], candidates.tokens[place]
        factors = np.where(probs > 0, acceptance, 0.0)
        scores = path_products(parents, factors).astype(np.float32)
        kept = strongest_nodes(scores, self._nodes)
        sources = np.ones(len(probs), np.int16)
        tokens[0], sources[0] = each.context.root, 0
        whole = DraftTree(tokens, parents, scores, sources, ("", SOURCE))
        each.tree = keep_ascending(whole, kept)
        each.token_probs = probs[kept].tolist()
        first = np.flatnonzero((parents == 0) & (probs > 0))
        each.first = tokens[first], probs[first]

    def _update_rates(self) -> None:
        """Learn from the drafts verified since the last call."""
        for each, tree, probs, tokens in self._verified:
            each.trust.observe(tree, probs, tokens)
            each.ranks.observe(tree, probs, tokens)
        self._verified.clear()

    def _next_text(self, each: _SequenceState, keep_last: int = 0) -> Text:
        """The tokens to process next. LongSpec takes those in its window, the root included; EAGLE
        pairs the stored features, except the `keep_last` last ones, with the tokens after them.
        Without new tokens the root is processed again, because a draft starts from its output."""
        window = self._runner.window
        memory = each.memory = each.memory or self._runner.open()
        if window is not None:
            if each.length - memory.end > window:
                memory.begin(each.length - window)
            memory.end = min(memory.end, each.length - 1)
            return Text(memory, each.text(memory.end, each.length))
        if not each.features and each.last_feature is not None:
            each.features, each.num_features = [each.last_feature], 1
            memory.end -= 1
        features = torch.cat(each.features) if len(each.features) > 1 else each.features[0]
        taken, first = each.num_features - keep_last, memory.end + 1
        each.features, each.num_features = [features[taken:]] if keep_last else [], keep_last
        each.last_feature = features[-1:]
        return Text(memory, each.text(first, first + taken), features[:taken])


def _plan_key(ready: list[_SequenceState], budget: Budget) -> tuple[int, int, int]:
    """Sequences, nodes of a tree, and the step's tokens without the head's draft, in halves."""
    return len(ready), budget.nodes, round(2 * budget.base_tokens)
