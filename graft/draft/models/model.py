"""Drafts of a smaller model: a chain (speculative decoding) or EAGLE-2's dynamic tree.

The draft model has a cache of its own. Per round it reads what it has not read of the text, for
all sequences in one forward, and then guesses level by level, one forward each. How deep it goes,
and whether it drafts at all, is weighed by time (`worth.py`) unless a preset fixes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from graft.draft.drafter import Budget, DraftContext
from graft.draft.models.growth import Growth
from graft.draft.models.guess import SOURCE, Guess
from graft.draft.models.reader import Reader
from graft.draft.models.worth import Account, Unlimited
from graft.draft.pacing.budget import as_many_as_fit, as_many_as_pay, best_of
from graft.draft.pacing.trust import Experience, Trust
from graft.models.language_model import LanguageModel, TargetStep
from graft.models.step_costs import StepCosts
from graft.tree.draft_tree import DraftTree, chain, root_only
from graft.tree.prune import shallow

UNCERTAIN = 2.0  # times the price of reading a prompt that drafts must promise, where they may err


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model, what its steps cost here, and how many token ids the target knows.

    `overhead` is what a level of guesses takes besides its step, in seconds; `source` what its
    guesses are called in statistics."""

    model: LanguageModel
    costs: StepCosts
    vocabulary: int
    overhead: float = 0.0
    source: str = SOURCE

    def known(self, logits: Tensor) -> Tensor:
        """Logits of exactly the target's ids: others are never drafted."""
        missing = self.vocabulary - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self.vocabulary]


@dataclass(slots=True)
class _Followed:
    """A sequence that is drafted for, and the last draft."""

    reader: Reader
    trust: Trust
    credit: float = 0.0  # seconds that its next trial may cost
    guess: Guess | None = None
    tree: DraftTree | None = None  # of the guess, before it was cut

    def forget_guess(self) -> None:
        self.guess = self.tree = None


class ModelDrafter:
    """A smaller model guesses what the target will write.

    An `adaptive` one drafts as much as pays. It reads a prompt if drafts promise to save more than
    `reward` times what that takes: 0 where somebody asked for it; `at_once` where all rounds shall
    have drafts, else piece by piece.
    """

    def __init__(
        self,
        helper: DraftModel,
        growth: Growth,
        *,
        nodes: int,
        adaptive: bool,
        reward: float = 0.0,
        at_once: bool = False,
    ) -> None:
        self._helper, self._model, self._growth = helper, helper.model, growth
        self._nodes, self._adaptive, self._reward = nodes, adaptive, reward
        self._at_once = at_once
        self._choose = as_many_as_pay if adaptive else as_many_as_fit
        self._followed: dict[int, _Followed] = {}
        self._experience = Experience()
        self._credit = 0.0  # seconds that reading a prompt which does not promise much may cost

    def start(self, context: DraftContext) -> None:
        """See Drafter. The prompt is mostly read piece by piece as rounds go by, so that nobody
        waits for all of it; until then nothing is drafted."""
        trust = Trust(self._experience)
        self._followed[context.sequence] = _Followed(self._reader(context), trust)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        followed = [self._followed[context.sequence] for context in contexts]
        for each in followed:
            each.forget_guess()
        if budget.nodes:
            self._draft([each for each in followed if self._prepare(each)], budget)
        for each in followed:
            each.tree = each.guess.tree() if each.guess else None
        whole = [
            each.tree or root_only(context.root)
            for each, context in zip(followed, contexts, strict=True)
        ]
        most = min(self._nodes, budget.nodes)
        if self._growth.sampled:
            return [shallow(tree, most) for tree in whole]
        return best_of(whole, self._choose, replace(budget, nodes=most))

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        for step in steps:
            each = self._followed[step.sequence]
            if each.tree:
                each.trust.observe(each.tree, each.guess.shares, step.tokens)
                each.forget_guess()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        each = self._followed.get(sequence)
        if each:
            self._experience.ended(len(each.reader.context.tokens))
            self.detach(sequence)

    def detach(self, sequence: int) -> None:
        """See Detachable."""
        self._followed.pop(sequence).reader.close()

    def first_tokens(self, sequence: int) -> list[int]:
        """What the model held likeliest after the root, in the draft just proposed."""
        tree = self._followed[sequence].tree
        return tree.tokens[tree.parents == 0].tolist() if tree else []

    def _reader(self, context: DraftContext) -> Reader:
        return Reader(self._model, context)

    def _prepare(self, each: _Followed) -> bool:
        return each.reader.prepare(self._growth.depth, self._growth.scratch)

    def _draft(self, ready: list[_Followed], budget: Budget) -> None:
        """Give those for whom it pays a guess."""
        if not ready:
            return
        length = sum(each.reader.seen for each in ready) // len(ready)
        account = self._account(budget, length) if self._adaptive else Unlimited()
        if self._at_once:
            self._read_prompts(ready)
        growing, logits = self._begin(ready, account)
        made = list(growing)
        while growing:
            logits, levels = self._helper.known(logits), self._levels(growing, account)
            if levels > 1:
                read = partial(self._read_drawn, growing, account)
                self._growth.extend_ahead(growing, logits, levels, read)
            else:
                self._growth.extend(growing, logits)
            account.weigh([np.array(guess.scores[1:]) for guess in made])
            growing = self._worthwhile(growing, account)
            if growing:
                account.pay(sum(self._growth.rows(guess) for guess in growing), len(growing))
                logits = self._growth.read(self._model, growing)

    def _read_drawn(
        self, growing: list[Guess], account: Account | Unlimited, tokens: Tensor
    ) -> Tensor:
        """See ReadDrawn. The host says where the rows are, and need not know what they hold."""
        extents = [guess.reader.extent for guess in growing]
        logits = self._model.score_drawn(extents, tokens)
        self._model.commit_all([(extent, [0]) for extent in extents])
        account.pay(len(extents), len(extents))
        return self._helper.known(logits)

    def _levels(self, growing: list[Guess], account: Account | Unlimited) -> int:
        """How many to grow before it is looked at what came: where a device computes meanwhile, as
        many as are expected to pay."""
        left = self._growth.depth - max(guess.depth for guess in growing)
        if left < 2 or not (self._model.asynchronous and self._growth.foresees(growing)):
            return 1
        hope = sum(guess.trust.hope for guess in growing) / len(growing)
        return account.levels(left, len(growing), hope)

    def _read_prompts(self, ready: list[_Followed]) -> None:
        """Read all but the last token of texts whose prompts are not read yet."""
        for reader in [each.reader for each in ready if each.reader.in_prompt]:
            while reader.missing > 1:
                piece = reader.next_piece(min(self._model.chunk, reader.missing - 1))
                self._model.prefill_chunk(reader.extent, piece)
                reader.sure += len(piece)

    def _account(self, budget: Budget, length: int) -> Account:
        helper = self._helper
        return Account(budget, helper.costs, length, overhead=helper.overhead)

    def _worthwhile(self, guesses: list[Guess], account: Account | Unlimited) -> list[Guess]:
        """Those that get one more level."""
        growing = [guess for guess in guesses if self._growth.goes_on(guess)]
        gains = [guess.reach * guess.trust.hope for guess in growing]
        rows = [self._growth.rows(guess) for guess in growing]
        return [growing[place] for place in sorted(account.paying(gains, rows))]

    def _begin(
        self, ready: list[_Followed], account: Account | Unlimited
    ) -> tuple[list[Guess], Tensor | None]:
        """Read what is missing; a guess without nodes for each that is up to date now, and the
        logits after their roots."""
        pieces = self._pieces(self._chosen(ready, account))
        if not pieces:
            return [], None
        logits, _ = self._model.score_all(
            [each.reader.extent for each, _ in pieces],
            [chain(piece) for _, piece in pieces],
            last_only=[True] * len(pieces),
        )
        begun = [len(piece) for each, piece in pieces if not each.reader.in_prompt]
        account.pay(sum(begun), max(len(begun), 1))
        complete = [
            place
            for place, (each, piece) in enumerate(pieces)
            if self._has_read(each.reader, piece)
        ]
        for place in complete:
            each = pieces[place][0]
            each.guess = Guess(each.reader, each.trust, self._helper.source)
        return [pieces[place][0].guess for place in complete], logits[complete]

    def _chosen(self, ready: list[_Followed], account: Account | Unlimited) -> list[_Followed]:
        """Who reads on: those for whom a draft pays, those whose turn it is to be tried again, and
        last, for they take all the room there is, those whose prompts are to be read."""
        begun = [each for each in ready if not each.reader.in_prompt]
        rows = [each.reader.missing for each in begun]
        paying = set(account.paying([each.trust.hope for each in begun], rows))
        chosen = []
        for place, each in enumerate(begun):
            each.credit += account.trial_seconds
            if place in paying or each.credit >= account.price(rows[place]):
                each.credit = 0.0
                chosen.append(each)
        return chosen + self._prompts([each for each in ready if each.reader.in_prompt], account)

    def _prompts(self, unread: list[_Followed], account: Account | Unlimited) -> list[_Followed]:
        """Whose prompts are read: all where drafts promise to pay for it, and now and then one of
        a new request to see whether they still do not."""
        if not unread:
            return []
        hope, expected = self._experience.hope, self._experience.answer
        gain = account.gain(self._growth.depth, len(unread), hope) * expected
        rewarding = [
            each for each in unread if gain > self._reward * account.price(each.reader.missing)
        ]
        if rewarding:
            return rewarding
        self._credit += account.trial_seconds * len(self._followed)
        begun = [each for each in unread if each.reader.sure]
        for each in unread:
            price = account.price(each.reader.missing)
            if not begun and len(each.reader.context.tokens) <= 1 and self._credit >= price:
                self._credit -= price
                begun = [each]
        return begun

    def _pieces(self, chosen: Sequence[_Followed]) -> list[tuple[_Followed, list[int]]]:
        """What each reads now, not more than the model reads at once in all."""
        pieces, room = [], self._model.chunk
        for each in chosen:
            piece = each.reader.next_piece(room)
            if piece:
                pieces.append((each, piece))
                room -= len(piece)
        return pieces

    def _has_read(self, reader: Reader, piece: list[int]) -> bool:
        """Note that a piece was read; whether nothing is missing any more.

        The root counts as a guess: if the round comes to nothing, it is read again.
        """
        complete = len(piece) == reader.missing
        kept = len(piece) - (complete and not self._growth.keeps_root)
        if kept:
            self._model.commit(reader.extent, list(range(kept)))
        reader.sure += len(piece) - complete
        if complete and self._growth.keeps_root:
            reader.guessed = [piece[-1]]
        return complete
