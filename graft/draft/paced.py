"""A drafter that is asked as long as that pays by the clock.

The budget rule weighs guesses by what steps were measured to take. What it cannot know is what
drafting takes besides: the host's work for every guess and every sequence, on a machine that may
be busy with other things. So rounds with drafts are timed against rounds without. Where they bring
fewer tokens per second the drafter rests for a while, longer each time it happens again, and costs
next to nothing. A copy in sight wakes it up for a round; if it comes true, it is awake again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.draft.rounds import LONGEST, Round, Rounds
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

FADE = 0.97  # weight of a round one round later
KNOWN = 8.0  # rounds from which a speed is believed
FIRST, REFRESH, EVERY = 4, 2, 128  # rounds without drafts: at first, and again every so often
SHORTEST_REST, LONGEST_REST = 16, 512  # rounds

Tempted = Callable[[int], bool]  # whether a sequence looks as if it were being copied


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

    def beats(self, other: "_Speed") -> bool:
        return self.tokens * other.time >= other.tokens * self.time


@dataclass(slots=True)
class _Pace:
    """Of rounds with about the same number of sequences: whether the next one is drafted for."""

    drafted: _Speed = field(default_factory=_Speed)
    plain: _Speed = field(default_factory=_Speed)
    resting: int = FIRST  # rounds to go
    rest: int = SHORTEST_REST
    since_plain: int = 0

    def asks(self) -> bool:
        if self.resting:
            self.resting -= 1
            return False
        self.since_plain += 1
        if self.since_plain > EVERY:
            self.since_plain, self.resting = 0, REFRESH - 1
            return False
        return True

    def ended(self, tokens: int, time: float, *, drafted: bool) -> None:
        """A round is over."""
        (self.drafted if drafted else self.plain).add(tokens, time)
        if not drafted or not self.drafted.known:
            return
        if self.drafted.beats(self.plain):
            self.rest = SHORTEST_REST
        elif not self.resting:
            self.resting, self.since_plain = self.rest, 0
            self.rest = min(2 * self.rest, LONGEST_REST)
            self.drafted = _Speed()  # what comes after the rest is another text

    def wake(self) -> None:
        """A copy came true."""
        self.resting, self.rest = 0, SHORTEST_REST


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of the round under way: the seconds it would take without drafts, and why it has any."""

    expected: float
    drafted: bool
    tempted: bool


class Paced:
    """Asks `drafter` where that pays; `tempted` tells of copies in sight."""

    def __init__(
        self, drafter: Drafter, clock: Callable[[], float], tempted: Tempted | None = None
    ) -> None:
        self._drafter, self._rounds = drafter, Rounds(clock)
        self._tempted = tempted or (lambda _: False)
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
            self._end(last, pace, len(whose))
        drafted = pace.asks()
        tempted = not drafted and pace.plain.rounds > 0 and any(map(self._tempted, whose))
        self._asked = _Asked(float(budget.seconds[0]), drafted, tempted)
        if drafted or tempted:
            return self._drafter.propose(contexts, budget)
        return [root_only(context.root) for context in contexts]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        self._rounds.came(sum(len(step.tokens) for step in steps))
        self._drafter.observe(steps)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._drafter.finish(sequence)

    def _end(self, last: Round, pace: _Pace, sequences: int) -> None:
        if not self._asked.tempted:
            time = last.seconds / self._asked.expected
            pace.ended(last.tokens, time, drafted=self._asked.drafted)
        elif last.tokens > sequences + 1:
            pace.wake()
