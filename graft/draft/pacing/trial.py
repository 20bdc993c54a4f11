"""Somebody who is asked in some rounds and not in others, by the tokens per second of both."""

from dataclasses import dataclass, field
from functools import partial
from math import inf

FADE = 0.97  # weight of a round one round later
CREEP = 1.01  # the shortest round is forgotten by so much in each: a machine may become slower
STEADY, VARIED = 1.5, 3.0  # times the shortest: what rounds take that nothing else held up
SOON, HOPELESS = 2.9, 0.6  # three rounds, faded, and the part of the other below which they will do
MORE = 1.01  # times the tokens of the other: fewer are chance
REFRESH = 2  # rounds without him from time to time, where he is asked:
EARLY, LATE = 16, 128  # after so many with him at first, twice as many each time, and at last
SHORTEST_REST = 16  # rounds
SHARE = 0.02  # of the time that trials may lose
KEEP, CREDIT = 0.998, 24.0  # of what was saved, a round later; rounds without him, at most
RUIN, HELD_UP = 2.0, 8.0  # rounds without him: lost so soon it is his doing; something else's


@dataclass(slots=True)
class Speed:
    """Tokens per time, recent rounds counting more. Tokens are those of a sequence, times in parts
    of what was expected of a step without drafts, so that neither the number of sequences nor
    context nor prompts in the same step matter. A round that took more than `longest` times the
    shortest was held up by something else: of the few rounds that are known, one such would decide
    for hundreds."""

    longest: float
    rounds: float = 0.0
    tokens: float = 0.0
    time: float = 0.0
    shortest: float = inf
    latest: float = 0.0  # what the latest round took, as far as it counts

    def add(self, tokens: float, time: float) -> None:
        """A round is over."""
        self.shortest = min(CREEP * self.shortest, time)
        most = self.longest * self.shortest
        self.latest = min(time, most)
        self.rounds = FADE * self.rounds + 1
        self.tokens = FADE * self.tokens + tokens
        self.time = min(FADE * self.time + self.latest, self.rounds * most)

    @property
    def mean(self) -> float:
        """What a round takes; 0 if none is known."""
        return self.time / self.rounds if self.rounds else 0.0

    def beats(self, other: "Speed", part: float = 1.0) -> bool:
        """Whether it is at least this part of the other."""
        return self.tokens * other.time >= part * other.tokens * self.time

    def brings_more(self, other: "Speed") -> bool:
        """Whether its rounds bring more tokens than the other's."""
        return self.tokens * other.rounds > MORE * other.tokens * self.rounds

    def rounds_for(self, tokens: float) -> float:
        """How many of its rounds bring so many tokens."""
        return tokens * self.rounds / self.tokens

    def lost_to(self, other: "Speed") -> float:
        """The rounds of the other that its tokens would have left time for."""
        return self.time / other.mean - other.rounds_for(self.tokens)


@dataclass(slots=True)
class Trial:
    """Whether he is asked in the next round. `known` are the rounds, faded, from which his speed is
    believed (one in ten may bring it all); the worse it is, the fewer will do: a trial that loses
    should be short. A rest is `longer` times as long as the last, and so long that trials lose this
    `share` of the time, but `longest` rounds at most. As long as all his rounds together have saved
    more than they cost, rests are short: three answers with nothing to copy say little of the next
    where every fourth is one copy."""

    known: float
    longer: int
    longest: int
    resting: int = 0  # rounds to go
    share: float = SHARE
    asked: Speed = field(default_factory=partial(Speed, VARIED))
    without: Speed = field(default_factory=partial(Speed, STEADY))
    rest: int = 0  # the last one
    saved: float = 0.0  # rounds without him, the latest counting most
    paid: int = 0  # rounds since the last rest that did
    since_without: int = 0
    every: int = EARLY  # so many rounds it is looked what those without him are like

    def asks(self) -> bool:
        """Whether he is; a round of his rest has passed if not. Nobody is before it is known what
        rounds without him are like."""
        if self.resting:
            self.resting -= 1
            return False
        if not self.knows_without:
            return False
        self.since_without += 1
        if self.since_without > self.every:
            self.since_without, self.resting = 0, REFRESH - 1
            self.every = min(2 * self.every, LATE)
            return False
        return True

    def ended(self, tokens: float, time: float, *, asked: bool, rounds: int = 1) -> None:
        """A round is over, or several without him that took as much each. A rest is longer than the
        last one, unless it had paid for longer than that to be asked, or pays in all."""
        if not asked:
            for _ in range(rounds):
                self.without.add(tokens, time)
            return
        self.asked.add(tokens, time)
        self.saved = min(KEEP * self.saved + self._gain(tokens), CREDIT)
        lost = self.asked.lost_to(self.without)
        if self._pays or (self.asked.rounds < SOON and not RUIN < lost < HELD_UP):
            self.paid += 1
        elif not self.resting and not self._may_pay:
            again = max(self.longer * self.rest, int(lost / self.share))
            rest = SHORTEST_REST if self.paid > self.rest or self.saved > 0 else again
            self.resting = self.rest = min(max(rest, SHORTEST_REST), self.longest)
            self.paid = self.since_without = 0
            self.asked = Speed(VARIED)  # what comes after the rest is another text

    def wake(self) -> None:
        """There is reason to think that it would pay again; if not, the next rest is longer."""
        self.resting = 0

    @property
    def knows_without(self) -> bool:
        """Whether it is known what rounds without him are like."""
        return self.without.rounds >= SOON

    @property
    def known_rest(self) -> int:
        """Of the rest under way, if he rests: the one before it, so that the next is as long."""
        return self.rest // self.longer if self.resting else 0

    def _gain(self, tokens: float) -> float:
        """The rounds without him that his last one saved. One that brought nothing more saved none,
        whatever the clock says."""
        instead = self.without.rounds_for(tokens)
        gain = instead - self.asked.latest / self.without.mean
        return gain if instead > MORE else min(gain, 0.0)

    @property
    def _pays(self) -> bool:
        """Whether more tokens come, and faster. A machine that was slower while he was not asked
        is not his merit."""
        return self.asked.brings_more(self.without) and self.asked.beats(self.without)

    @property
    def _may_pay(self) -> bool:
        """Whether so few rounds leave hope: the fewer, the more."""
        known = min(self.asked.rounds / self.known, 1.0)
        hope = HOPELESS + (1 - HOPELESS) * known
        return (known < 1 or self._pays) and self.asked.beats(self.without, hope)
