"""A drafter that is asked as long as that pays by the clock.

The budget rule weighs guesses by what steps were measured to take. What it cannot know is what
drafting takes besides: the host's work for every guess and every sequence, on a machine that may
be busy with other things. So rounds are timed. Where those with drafts bring fewer tokens per
second than those without, the drafter rests for a while, longer each time it happens again, and
costs next to nothing. Copies are nearly free to find, so where one is in sight they are asked for
alone while the rest rests; and they too rest where they do not pay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.draft.pacing.rounds import LONGEST, Rounds
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

FADE = 0.97  # weight of a round one round later
KNOWN = 8.0  # rounds from which a speed is believed
SOON, HOPELESS = 2.9, 0.6  # or from three, faded, where it is below this part of the other's
FIRST, REFRESH, EVERY = 4, 2, 128  # rounds without drafts: at first, and again every so often
SHORTEST_REST, LONGEST_REST, LONGER = 16, 512, 4  # rounds; so many times the last one
LOOK = 8  # rounds of rest after which it is looked whether a copy is in sight


class Copies(Drafter, Protocol):
    """A drafter that knows when it is on to something."""

    def is_copying(self, sequence: int) -> bool:
        """Whether a sequence looks as if it were being copied."""


class Kind(Enum):
    """Who is asked in a round."""

    EVERYBODY = auto()
    COPIES = auto()
    NOBODY = auto()


@dataclass(slots=True)
class _Speed:
    """Tokens per time, recent rounds counting more; times are in parts of what was expected of a
    step without drafts, so that neither context nor prompts in the same step matter."""

    rounds: float = 0.0
    tokens: float = 0.0
    time: float = 0.0

    def add(self, tokens: int, time: float) -> None:
        self.rounds = FADE * self.rounds + 1
        self.tokens = FADE * self.tokens + tokens
        self.time = FADE * self.time + min(time, LONGEST)

    @property
    def known(self) -> bool:
        return self.rounds >= KNOWN

    def beats(self, other: "_Speed", part: float = 1.0) -> bool:
        return self.tokens * other.time >= part * other.tokens * self.time


@dataclass(slots=True)
class _Trial:
    """Somebody who is asked in some rounds and not in others: whether he is in the next one."""

    resting: int  # rounds to go
    asked: _Speed = field(default_factory=_Speed)
    without: _Speed = field(default_factory=_Speed)
    rest: int = SHORTEST_REST // LONGER  # the last one
    paid: int = 0  # rounds since the last rest that did
    since_without: int = 0

    def asks(self) -> bool:
        if self.resting:
            self.resting -= 1
            return False
        self.since_without += 1
        if self.since_without > EVERY:
            self.since_without, self.resting = 0, REFRESH - 1
            return False
        return True

    def ended(self, tokens: int, time: float, *, asked: bool) -> None:
        """A round is over. A rest is several times the last one, unless it had paid for longer than
        that to be asked."""
        (self.asked if asked else self.without).add(tokens, time)
        if not asked or not self._can_be_judged():
            return
        if self.asked.beats(self.without):
            self.paid += 1
        elif not self.resting:
            longer = min(LONGER * self.rest, LONGEST_REST)
            self.resting = self.rest = SHORTEST_REST if self.paid > self.rest else longer
            self.paid = self.since_without = 0
            self.asked = _Speed()  # what comes after the rest is another text

    def _can_be_judged(self) -> bool:
        """Few rounds will do where they took far longer than those without for what they brought:
        a trial that loses should be short."""
        soon = self.asked.rounds >= SOON and not self.asked.beats(self.without, HOPELESS)
        return self.asked.known or soon


class _Pace:
    """Of rounds with about the same number of sequences: who is asked in the next one."""

    def __init__(self) -> None:
        self._everybody, self._copies = _Trial(FIRST), _Trial(0)
        self._unseen = 0  # rounds since it was looked for copies

    def kind(self, copying: Callable[[], bool]) -> Kind:
        """Looking takes time too: while no copy is in sight, only every few rounds."""
        if self._everybody.asks():
            self._unseen = 0
            return Kind.EVERYBODY
        self._unseen += 1
        if self._unseen >= LOOK and self._copies.without.rounds:
            if copying():  # and again in the next round
                return Kind.COPIES if self._copies.asks() else Kind.NOBODY
            self._unseen = 0
        return Kind.NOBODY

    def ended(self, kind: Kind, tokens: int, time: float) -> None:
        """A round is over: the others' use is what they add to copies, that of copies what they
        add to nothing."""
        self._everybody.ended(tokens, time, asked=kind is Kind.EVERYBODY)
        if kind is not Kind.EVERYBODY:
            self._copies.ended(tokens, time, asked=kind is Kind.COPIES)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of the round under way: who is asked, and the seconds it would take without drafts."""

    kind: Kind
    expected: float


class Paced:
    """Asks `drafter` where that pays; of its members, `copies` can be asked alone."""

    def __init__(
        self, drafter: Drafter, clock: Callable[[], float], copies: Copies | None = None
    ) -> None:
        self._drafter, self._rounds, self._copies = drafter, Rounds(clock), copies
        self._paces: dict[int, _Pace] = {}
        self._asked: _Asked | None = None

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        self._drafter.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        whose = [context.sequence for context in contexts]
        pace = self._paces.setdefault(len(whose).bit_length(), _Pace())
        last = self._rounds.begin(whose)
        if last:
            pace.ended(self._asked.kind, last.tokens, last.seconds / self._asked.expected)
        kind = pace.kind(lambda: self._are_copying(whose))
        self._asked = _Asked(kind, float(budget.seconds[0]))
        if kind is Kind.NOBODY:
            return [root_only(context.root) for context in contexts]
        asked = self._drafter if kind is Kind.EVERYBODY else self._copies
        return asked.propose(contexts, budget)

    def _are_copying(self, whose: list[int]) -> bool:
        """Whether a copy is in sight for any of these sequences."""
        return self._copies is not None and any(map(self._copies.is_copying, whose))

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._rounds.came(sum(len(step.tokens) for step in steps))
        self._drafter.observe(steps)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._drafter.finish(sequence)
