"""Copies, and networks besides, each asked as long as that pays by the clock.

The budget rule weighs guesses by what steps were measured to take. What it cannot know is what
drafting takes besides: the host's work for every guess and every sequence, on a machine that may
be busy with other things. So rounds are timed. What rounds with guesses take beyond the table is
added to what guesses cost. Where somebody brings fewer tokens per second when he is asked than when
he is not, he rests for a while, longer each time it happens again, and costs next to nothing:
networks are not even told of sequences that begin meanwhile. While copies rest, they are asked
where one is in sight and, as long as that pays, at the beginning of answers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from graft.draft.drafter import Budget, Detachable, DraftContext, Drafter, UpdatesAsync
from graft.draft.pacing.rounds import Round, Rounds
from graft.draft.pacing.trial import SHARE, Trial
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

FIRST = 4  # rounds without drafts, at first
KNOWN = 8  # rounds, faded, from which a speed is believed; of a single sequence's copies thrice
LOOK = 4  # rounds of rest after which it is looked whether a copy is in sight
OPENING = 2  # rounds at the beginning of an answer, which may repeat the question
WOKEN = 3  # rounds of copies in sight that paid, after which all are asked for again
LEAVE = 32  # rounds of rest to go that are not worth telling networks of a new sequence;
LET_GO = 256  # nor, of one under way, telling them on: that delays every round
SHARE_DRAWN = 0.01  # of the time that trials may lose where tokens are drawn: fewer repeat anything
LEARN, FORGET = 0.05, 0.99  # of what guesses take besides: by a round with some, by one without


Whose = TypeVar("Whose", DraftContext, TargetStep)


class Copies(Drafter, UpdatesAsync, Protocol):
    """A drafter that knows when it is on to something."""

    def is_copying(self, sequence: int) -> bool:
        """Whether a sequence looks as if it were being copied."""


class Everybody(Drafter, Detachable, Protocol):
    """Copies, and networks that can be let go of."""


class Kind(Enum):
    """Who is asked in a round."""

    EVERYBODY = auto()
    COPIES = auto()
    SIGHTED = auto()  # copies that otherwise rest, where one is in sight;
    OPENING = auto()  # at the beginning of an answer
    NOBODY = auto()
    DOZING = auto()  # the same, timed together with those before


@dataclass(slots=True)
class _Asked:
    """Of the round under way: whose pace it has, who is asked, what steps cost by their nodes
    (`Budget.seconds`) and what was drafted. Of a rest, all `rounds` that are timed together."""

    pace: "_Pace"
    kind: Kind
    seconds: np.ndarray
    trees: list[DraftTree]
    rounds: int = 1

    @property
    def plain(self) -> float:
        """Seconds without guesses."""
        return float(self.seconds[0])

    @property
    def guesses(self) -> int:
        """How many were made."""
        return sum(map(len, self.trees)) - len(self.trees)

    @property
    def expected(self) -> float:
        """Seconds with them."""
        return float(self.seconds[min(self.guesses, len(self.seconds) - 1)])


@dataclass(slots=True)
class _Besides:
    """What a round with guesses takes beyond what the table says of its nodes, in the table's
    seconds: the table is held against rounds in which nobody was asked."""

    seconds: float = 0.0
    rounds: int = 0  # with guesses

    def ended(self, asked: _Asked, took: float, pace: float) -> None:
        """A round is over. Those in which nobody was asked take `pace` of the table's seconds, 0
        where that is not known. The first ones count as much as all before them."""
        if not asked.guesses:
            self.seconds *= FORGET
        elif pace:
            self.rounds += 1
            besides = min(max(took / pace - asked.expected, -asked.plain), asked.plain)
            self.seconds += max(LEARN, 1 / self.rounds) * (besides - self.seconds)


class _Pace:
    """Of rounds of one kind: who is asked in the next one. The more sequences there are, the fewer
    rounds show what copies bring. Networks that rest in rounds of the `nearest` kind rest here too;
    copies are tried, but rest as long at once if that does not pay."""

    def __init__(self, sequences: int, *, drawn: bool, nearest: "_Pace | None" = None) -> None:
        enough = max(3 * KNOWN / sequences, KNOWN)
        share = SHARE_DRAWN if drawn else SHARE
        self.networks = Trial(KNOWN, longer=16, longest=2048, resting=2 * FIRST, share=share)
        self.copies = Trial(enough, longer=4, longest=1024, resting=FIRST, share=share)
        self.sighted = Trial(KNOWN, longer=4, longest=256, share=share)
        self.opening = Trial(KNOWN, longer=4, longest=256, share=share)
        if nearest:
            self.networks.rest = nearest.networks.known_rest
            self.networks.resting = max(2 * FIRST, nearest.networks.resting)
            self.copies.rest = nearest.copies.known_rest
        self.besides = _Besides()
        self._unseen = 0  # rounds since it was looked for copies

    def dozes(self, *, networks: bool) -> bool:
        """Whether the next round is one of a rest in which nobody looks around: that takes time
        that plain decoding does not."""
        resting = self.copies.resting > 0 and (not networks or self.networks.resting > 0)
        if not (resting and self.copies.knows_without) or self._unseen + 1 >= LOOK:
            return False
        self._unseen += 1
        self.copies.resting -= 1
        self.networks.resting -= self.networks.resting > 0
        return True

    def kind(self, copying: Callable[[], bool], *, networks: bool, opening: bool) -> Kind:
        """Who is asked in the next round."""
        if (networks or self.networks.resting) and self.networks.asks():
            return Kind.EVERYBODY
        if self.copies.asks():
            return Kind.COPIES
        if opening:
            return Kind.OPENING if self.opening.asks() else Kind.NOBODY
        self._unseen += 1
        if self._unseen >= LOOK and self.sighted.without.rounds:
            if copying():  # and again in the next round
                return Kind.SIGHTED if self.sighted.asks() else Kind.NOBODY
            self._unseen = 0
        return Kind.NOBODY

    def ended(self, asked: _Asked, last: Round) -> None:
        """A round is over: networks' use is what they add to copies, that of copies what they add
        to nothing."""
        kind, time = asked.kind, last.seconds / asked.rounds / asked.plain
        tokens = last.tokens / asked.rounds / len(asked.trees)  # not always as many ran
        if kind is not Kind.EVERYBODY:
            self.besides.ended(asked, last.seconds, self.copies.without.mean)
        self.networks.ended(tokens, time, asked=kind is Kind.EVERYBODY, rounds=asked.rounds)
        trials = {
            Kind.COPIES: self.copies, Kind.OPENING: self.opening, Kind.SIGHTED: self.sighted
        }  # fmt: skip
        for whose, trial in trials.items():
            if kind in (whose, Kind.NOBODY):
                trial.ended(tokens, time, asked=kind is whose, rounds=asked.rounds)
        if self.sighted.paid >= WOKEN:
            self.copies.wake()
            self.sighted.paid = 0


class Paced:
    """Asks `copies` where that pays, and `everybody`, who asks them among others, where that pays
    more; but not for prompts of fewer than `least` tokens, which networks have no say in."""

    def __init__(
        self,
        copies: Copies,
        clock: Callable[[], float],
        everybody: Everybody | None = None,
        *,
        least: int = 0,
    ) -> None:
        self._copies, self._rounds = copies, Rounds(clock)
        self._everybody, self._least = everybody, least
        self._paces: dict[tuple[int, bool, bool], _Pace] = {}
        self._latest: _Pace | None = None
        self._usual: _Pace | None = None  # the latest of rounds in which no prompt was read
        self._whose: list[int] = []  # sequences of the latest round
        self._reads = False  # and whether prompts were read in it
        self._asked: _Asked | None = None
        self._over: tuple[_Asked, Round] | None = None  # the one before, to be thought over
        self._next: Kind | None = None  # None: to be decided
        self._opening = 0  # rounds to go at the beginning of most answers
        self._asleep = False  # nobody is asked in the round under way
        self._late: list[TargetStep] = []  # what nobody has been shown yet
        self._told: set[int] = set()  # sequences that everybody knows of

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        short = len(context.prompt) < self._least
        if self._everybody is None or short or self._is_left():
            self._copies.start(context)
        else:
            self._told.add(context.sequence)
            self._everybody.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        self._turn_to(contexts, reads=budget.reads)
        pace, kind, self._next = self._latest, self._next, None
        self._asleep = kind in (Kind.NOBODY, Kind.DOZING)
        self._opening -= self._opening > 0
        if kind is Kind.DOZING and self._goes_on():
            self._asked.rounds += 1
            return [root_only(context.root) for context in contexts]
        if not self._asleep:
            self._catch_up()
        last = self._rounds.begin(self._whose)
        if last:
            self._over = self._asked, last
        if self._asleep:
            kind, trees = Kind.NOBODY, [root_only(context.root) for context in contexts]
        else:
            besides = max(pace.besides.seconds, 0.0)
            dear = Budget(budget.nodes, budget.seconds, budget.base_tokens, besides, budget.reads)
            trees = self._trees(kind, contexts, dear)
        self._asked = _Asked(pace, kind, budget.seconds, trees)
        return trees

    def update_async(self) -> None:
        """Hold the last round that is over against the clock, and decide who is asked in the next:
        in time that the device takes anyway."""
        self._catch_up()
        self._copies.update_async()
        if self._over:
            asked, last = self._over
            self._over = None
            asked.pace.ended(asked, last)
        if self._told and self._usual and self._usual.networks.resting >= LET_GO:
            self._let_go()
        networks, opening = self._knows(self._whose), self._opening > 0
        if not opening and self._latest.dozes(networks=networks):
            self._next = Kind.DOZING
        else:
            copying = partial(self._are_copying, self._whose)
            self._next = self._latest.kind(copying, networks=networks, opening=opening)

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter. Where nobody listens, the next step need not wait for this."""
        self._rounds.came(sum(len(step.tokens) for step in steps))
        self._late += steps
        if self._told or not self._asleep:
            self._catch_up()

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._rounds.finished()
        self._catch_up()
        told = sequence in self._told
        (self._everybody if told else self._copies).finish(sequence)
        self._told.discard(sequence)

    def _turn_to(self, contexts: list[DraftContext], *, reads: bool) -> None:
        """To the next round, whoever it is of: who is asked is decided after this."""
        whose = [context.sequence for context in contexts]
        same = whose == self._whose and reads == self._reads
        if self._next is not None and same:
            return
        began = len(whose) - len(set(whose) & set(self._whose))
        if 2 * began > len(whose):
            self._opening, self._next = OPENING, None
        self._whose, self._reads, before = whose, reads, self._latest
        self._latest = self._pace(contexts, reads=reads)
        if not reads:
            self._usual = self._latest
        if self._next is None or self._latest is not before:
            self.update_async()

    def _goes_on(self) -> bool:
        """Whether the round before was one of the same rest of the same sequences."""
        before = self._asked
        same = before is not None and before.kind is Kind.NOBODY and before.pace is self._latest
        return same and self._rounds.are_of(self._whose)

    def _catch_up(self) -> None:
        """Show what nobody has been shown yet."""
        if self._late:
            late, self._late = self._late, []
            for drafter, mine in self._by_drafter(late):
                drafter.observe(mine)

    def _trees(self, kind: Kind, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        if kind is not Kind.EVERYBODY:
            return self._copies.propose(contexts, budget)
        found: dict[int, DraftTree] = {}
        for drafter, mine in self._by_drafter(contexts):
            trees = drafter.propose(mine, budget)
            found |= zip((context.sequence for context in mine), trees, strict=True)
        return [found[context.sequence] for context in contexts]

    def _by_drafter(self, each: list[Whose]) -> Iterator[tuple[Drafter, list[Whose]]]:
        """Those whose sequences everybody knows of, and the others, with who drafts for them."""
        if not self._told:
            yield self._copies, each
            return
        told = [one for one in each if one.sequence in self._told]
        if told:
            yield self._everybody, told
        if len(told) < len(each):
            yield self._copies, [one for one in each if one.sequence not in self._told]

    def _pace(self, contexts: list[DraftContext], *, reads: bool) -> _Pace:
        """Of rounds of as many sequences, or about as many, most of which are drawn or are not:
        what is drawn repeats less. And of those that `reads` prompts too: they take as long as
        these are, whatever is drafted."""
        greedy = sum(context.greedy for context in contexts)
        kind = len(contexts).bit_length(), 2 * greedy < len(contexts), reads
        if kind not in self._paces:
            alike = [each for each in self._paces if each[1] == kind[1]]
            nearest = min(alike, key=lambda each: abs(each[0] - kind[0]), default=None)
            before = self._paces.get(nearest)
            self._paces[kind] = _Pace(len(contexts), drawn=kind[1], nearest=before)
        return self._paces[kind]

    def _knows(self, whose: list[int]) -> bool:
        """Whether networks know of any of these sequences."""
        return not self._told.isdisjoint(whose)

    def _is_left(self) -> bool:
        """Whether networks rest for so long that they need not know of a sequence that begins: in
        rounds in which no prompt is read, as nearly all of an answer's are."""
        pace = self._usual or self._latest
        return pace is not None and pace.networks.resting >= LEAVE

    def _let_go(self) -> None:
        """Networks need not know of those who are writing any more."""
        for sequence in self._told.intersection(self._whose):
            self._everybody.detach(sequence)
            self._told.remove(sequence)

    def _are_copying(self, whose: list[int]) -> bool:
        """Whether a copy is in sight for any of these sequences."""
        return any(map(self._copies.is_copying, whose))
