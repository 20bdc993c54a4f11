"""Drafts of a head that was trained for the target: EAGLE-2's or LongSpec's.

A head follows its target: what the target has read and written is read by the head too, from the
target's features (EAGLE) or beside its cache (LongSpec). A round then grows a tree for all
sequences at once (`growth.py`), of the paper's shape or of one that pays (`worth.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graft.draft.drafter import Budget, DraftContext
from graft.draft.heads.growth import Asked, Beam, Growth, LaunchedGrowth, Pool
from graft.draft.heads.ranks import Ranks
from graft.draft.heads.worth import TRIAL, Draft, Paying, Trial, plain
from graft.draft.pacing.budget import as_many_as_fit, as_many_as_pay, best_of
from graft.draft.pacing.ledger import Ledger
from graft.draft.pacing.trust import Experience, Trust
from graft.machine import has_triton
from graft.models.arena import Extent
from graft.models.heads.runner import HeadRunner, Memory, Text
from graft.models.language_model import TargetStep
from graft.models.step_costs import StepCosts
from graft.models.storage import RowStorage
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import keep
from graft.tree.relations import path_products

SOURCE = "head"
REVIEW = 8  # drafts after which shapes are weighed anew: it takes as long as a small step
FOLLOWED = 8  # of so many sequences one is followed where drafts are far from paying
PENDING = 4096  # features that may wait for a round, so that nobody waits for a head that reads
EAGLE_BEAM = Beam((10,) * 6, 10, keeps_all=True)
EAGLE_NODES = 59
LONGSPEC_BEAM = Beam((4, 16, 16, 16, 16), 16, keeps_all=False)
LONGSPEC_NODES = 68
BEAMS = {"eagle2": (EAGLE_BEAM, EAGLE_NODES), "longspec": (LONGSPEC_BEAM, LONGSPEC_NODES)}


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head, how its guesses grow, what a level of them costs here, and what a round of them takes
    besides, by sequences. `clock` tells whether drafts keep what they promise; None where counts
    must not depend on the machine."""

    runner: HeadRunner
    growth: Growth
    costs: StepCosts
    overhead: StepCosts | None = None
    clock: Callable[[], float] | None = None


def growth_for(runner: HeadRunner) -> Growth:
    """The fastest way to grow a head's trees."""
    rows = (runner.storage, runner.model.arena.storage)
    if runner.device.type != "cuda" or not all(isinstance(each, RowStorage) for each in rows):
        return LaunchedGrowth(runner)
    if not has_triton():
        return LaunchedGrowth(runner)
    from graft.draft.heads.graphed import GraphedGrowth

    return GraphedGrowth(runner)


@dataclass(slots=True)
class _Followed:
    """A sequence that is drafted for, and the last draft."""

    context: DraftContext
    trust: Trust
    ranks: Ranks
    left_alone: bool  # the head neither reads nor drafts
    memory: Memory | None = None
    extent: Extent | None = None  # the target's rows
    waiting: list[Tensor] = field(default_factory=list)  # features that are not read yet,
    pending: int = 0  # and how many these are
    shown: int = 0  # tokens up to the last feature
    latest: Tensor | None = None  # the last feature that was read
    tree: DraftTree | None = None
    shares: list[float] | None = None  # the head's, of the tree's nodes

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.context.prompt) + len(self.context.tokens)

    def text(self, first: int, last: int) -> list[int]:
        """Tokens at positions first .. last - 1."""
        prompt = self.context.prompt
        behind = max(0, first - len(prompt)), max(0, last - len(prompt))
        return prompt[first:last] + self.context.tokens[slice(*behind)]

    def forget_draft(self) -> None:
        self.tree = self.shares = None


class HeadDrafter:
    """A head guesses what its target will write; without a `beam` as widely as pays."""

    def __init__(self, helper: DraftHead, beam: Beam | None = None, *, nodes: int) -> None:
        self._runner, self._grow, self._nodes = helper.runner, helper.growth, nodes
        self._beam, self._shapes = beam, Paying(helper.costs, helper.overhead)
        self._choose = as_many_as_fit if beam else as_many_as_pay
        self._calibrated = beam is None
        self._followed: dict[int, _Followed] = {}
        self._experience, self._ranks = Experience(), Ranks()
        self._ledger = Ledger(helper.clock) if helper.clock and beam is None else None
        # By sequences and tokens at hand: a draft, if one pays, and what trying would cost
        self._chosen: dict[tuple[int, int], tuple[Draft | None, Trial]] = {}
        self._started, self._hopeless = 0, False  # sequences; whether drafts are far from paying
        self._checked: list[tuple[_Followed, DraftTree, np.ndarray, list[int]]] = []
        self._drafts = 0
        self._credit = 0.0  # seconds that a draft which is not expected to pay may cost

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        trust, ranks = Trust(self._experience), Ranks(self._ranks)
        self._started += 1
        left_alone = self._hopeless and self._started % FOLLOWED != 0
        self._followed[context.sequence] = _Followed(context, trust, ranks, left_alone)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        followed = [self._followed[context.sequence] for context in contexts]
        for each in followed:
            each.forget_draft()
        ready = [each for each in followed if each.extent is not None] if budget.nodes else []
        beam = self._beam or self._paying_beam(ready, contexts, budget)
        if ready and beam:
            self._draft(ready, beam, budget)
        whole = [each.tree or root_only(each.context.root) for each in followed]
        return best_of(whole, self._choose, budget)

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter. Features are there until the next step is sent: they are taken along now,
        and read when a round needs them."""
        if self._ledger:
            self._ledger.came(sum(len(step.tokens) for step in steps))
        steps = [step for step in steps if not self._followed[step.sequence].left_alone]
        followed = [self._followed[step.sequence] for step in steps]
        for each, step in zip(followed, steps, strict=True):
            if each.tree and step.tokens:
                self._checked.append((each, each.tree, each.shares, step.tokens))
                each.forget_draft()
        if self._runner.window is None and steps:
            self._take_along(followed, steps)
        for each, step in zip(followed, steps, strict=True):
            each.extent = step.extent

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        each = self._followed.pop(sequence, None)
        if each and each.memory:
            self._runner.close(each.memory)

    def first_tokens(self, sequence: int) -> list[int]:
        """What the head held likeliest after the root, in the draft just proposed."""
        tree = self._followed[sequence].tree
        return tree.tokens[tree.parents == 0].tolist() if tree else []

    def _paying_beam(
        self, ready: list[_Followed], contexts: list[DraftContext], budget: Budget
    ) -> Beam | None:
        """What to grow, its promise written down if it is for everybody."""
        if self._ledger:
            self._ledger.begin([context.sequence for context in contexts])
        draft = self._shape(ready, budget) if ready else None
        if self._ledger and len(ready) == len(contexts):
            self._ledger.expect(draft.expected if draft else plain(budget), drafted=bool(draft))
        return draft.beam if draft else None

    def _shape(self, ready: list[_Followed], budget: Budget) -> Draft | None:
        """What to grow; where nothing pays, now and then a little to see whether that is still
        so."""
        situation = _situation(ready, budget)
        if situation not in self._chosen:
            self._weigh(ready, budget)
        draft, trial = self._chosen[situation]
        if draft is None:
            self._credit += trial.allowance
            if self._credit < trial.loss:
                return None
            self._credit, draft = 0.0, trial.draft
            del self._chosen[situation]  # to be weighed again when it is known how that went
        self._drafts += 1
        return draft

    def _weigh(self, ready: list[_Followed], budget: Budget) -> None:
        """Choose the shape of rounds like this one, from all that is known."""
        self._learn()
        ranks, length = [each.ranks for each in ready], _length(ready)
        worth = self._ledger.worth if self._ledger else 1.0
        draft = self._shapes.choose(ranks, length, budget, worth)
        trial = self._shapes.trial(ranks, length, budget, worth)
        self._chosen[_situation(ready, budget)] = draft, trial
        if budget.base_tokens == len(ready):  # what others found says nothing of the head
            self._hopeless = draft is None and trial.hopeless

    def _take_along(self, followed: list[_Followed], steps: list[TargetStep]) -> None:
        """The features that a step made final, of everybody in one piece."""
        counts = [len(step.nodes) for step in steps]
        features = self._runner.model.features([node for step in steps for node in step.nodes])
        for each, step, own in zip(followed, steps, features.split(counts), strict=True):
            first = step.extent.total - len(step.nodes)
            if each.memory is None or first != each.shown:  # what comes before has no features
                each.memory = each.memory or self._runner.open()
                each.memory.begin(first)
                each.waiting, each.pending = [], 0
                each.context.unseen = first
            each.shown = step.extent.total
            each.waiting.append(own)
            each.pending += len(step.nodes)
        long = [each for each in followed if each.pending > PENDING]
        self._runner.read([self._unread(each, but=1) for each in long])

    def _draft(self, ready: list[_Followed], beam: Beam, budget: Budget) -> None:
        """Give each of them a tree. What the last ones were worth is learned while the device is
        busy."""
        asked = [Asked(self._unread(each), each.extent, each.context.sampler) for each in ready]
        waiting = self._grow.begin(asked, beam)
        if self._beam is None and beam is not TRIAL and self._drafts % REVIEW == 0:
            self._weigh(ready, budget)
        else:
            self._learn()
        pool = waiting()
        for place, each in enumerate(ready):
            self._settle(each, pool, place)

    def _settle(self, each: _Followed, pool: Pool, place: int) -> None:
        """The best of a sequence's nodes become its tree."""
        shares = np.exp(pool.logs[place])
        believed = each.trust.all_believed(shares) if self._calibrated else shares
        scores = path_products(pool.parents[place], np.where(shares > 0, believed, 0.0))
        count = min(self._nodes, int((scores[1:] > 0).sum()))
        kept = np.sort(np.argsort(-scores, kind="stable")[: count + 1])  # parents before children
        sources = np.ones(len(shares), np.int16)
        sources[0] = 0
        tokens = pool.tokens[place]
        tokens[0] = each.context.root
        parents = pool.parents[place].astype(np.int32)
        whole = DraftTree(tokens, parents, scores.astype(np.float32), sources, ("", SOURCE))
        each.tree, each.shares = keep(whole, kept.tolist()), shares[kept].tolist()

    def _learn(self) -> None:
        """From the drafts that were checked since the last time."""
        for each, tree, shares, tokens in self._checked:
            each.trust.observe(tree, shares, tokens)
            each.ranks.observe(tree, shares, tokens)
        self._checked.clear()

    def _unread(self, each: _Followed, but: int = 0) -> Text:
        """LongSpec reads what it can still see, the root included; EAGLE pairs the features that
        wait, all `but` the last ones, with the tokens behind them. Where nothing is new, the root
        is read again: a round begins with reading."""
        window = self._runner.window
        if window is not None:
            each.memory = each.memory or self._runner.open()
            if each.length - each.memory.end > window:
                each.memory.begin(each.length - window)
            each.memory.end = min(each.memory.end, each.length - 1)
            return Text(each.memory, each.text(each.memory.end, each.length))
        if not each.waiting:
            each.waiting, each.pending = [each.latest], 1
            each.memory.end -= 1
        features = torch.cat(each.waiting) if len(each.waiting) > 1 else each.waiting[0]
        taken, first = each.pending - but, each.memory.end + 1
        each.waiting, each.pending = [features[taken:]] if but else [], but
        each.latest = features[-1:]
        return Text(each.memory, each.text(first, first + taken), features[:taken])


def _situation(ready: list[_Followed], budget: Budget) -> tuple[int, int]:
    """Sequences, and tokens that come with the step anyway, in halves."""
    return len(ready), round(2 * budget.base_tokens)


def _length(ready: list[_Followed]) -> int:
    return sum(each.length for each in ready) // len(ready)
