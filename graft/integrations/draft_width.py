"""How many draft tokens all requests of another engine's step get.

An engine that schedules the next step while this one runs must know its size before the drafts. So
every request gets the same number of draft tokens, chosen from the acceptance rates of the drafts
of a step or two ago and from measured step times; 0 makes a plain step.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf

from graft.integrations.step_times import AFTER_DRAFTS, DRAFTED, RISE, StepTimes

PROBED = 32  # steps without drafts after which they are tried, where no rates arrive
FIRST_RATE, KEPT = 0.5, 0.95  # the acceptance rate before any draft; weight of a step one later
TRUSTED = 2.0  # expected tokens that count as accepted before any draft
DOUBTED = 0.998  # weight of recent drafts that were not, after a plain step
RECENT = 0.98  # weight of a step one step later, in the gain of the run
TRIAL, PLAIN_TRIAL = 2, 3  # steps: the first plain one is one right after drafts
TRIALS = 0.004  # of all tokens: what trials may cost
APART, SAVED = 16, 1000  # steps between two trials, at least; steps whose share is kept, at most


class DraftWidth:
    """Chooses the number of draft tokens with the most tokens per second.

    The time of a step is worth the tokens that the run generates in it on average: weighing each
    step by itself would cut good drafts short and pad the others. Times are in plain steps of as
    many requests, and tokens are those of one request. What the plain step right after drafts takes
    longer counts where drafts begin, because drafts that begin also end.
    """

    def __init__(self, max_width: int, fewest: int = 1) -> None:
        """At most max_width; of others those that make 2, 4, 8, ... rows of a request, because
        engines pad steps to such sizes. Drafts have at least the fewest of these."""
        powers = (2**power - 1 for power in range(1, 8))
        between = (each for each in powers if fewest <= each < max_width)
        self._widths = sorted({0, max_width, *between})
        self._times = StepTimes()
        self._tokens = self._time = 0.0  # of recent steps
        self._right = self._wrong = 0.0
        self._expected: dict[int, float] = {}  # tokens of each request, by width
        self._expectations = self._found = 0.0  # of recent drafts
        self._plain = 0  # steps in a row
        self._drafted = False  # the step that was observed last
        self._again = (0, 0)  # the width of a trial, and steps that it still has
        self._since = 0  # steps chosen after the last trial
        # Tokens of a request that trials of no drafts, and of others, may cost
        self._allowed = [inf, inf]

    def observe(self, width: int, counts: Sequence[int], seconds: float) -> bool:
        """Count a step: the tokens that each request generated with `width` draft tokens. Returns
        whether it was no plain step right after drafts, which takes longer."""
        if not counts:
            return False
        requests, tokens = len(counts), sum(counts)
        waited, self._drafted = self._drafted and not width, width > 0
        self._times.observe(requests, AFTER_DRAFTS if waited else width, seconds)
        self._tokens = RECENT * self._tokens + tokens / requests
        self._time = RECENT * self._time + self._times.cost(requests, width)
        if width:
            self._right = KEPT * self._right + tokens - requests
            self._wrong = KEPT * self._wrong + sum(count <= width for count in counts)
            self._expectations = KEPT * self._expectations + self._expected.get(width, 0.0)
            self._found = KEPT * self._found + tokens / requests - 1.0
        else:
            self._expectations, self._found = DOUBTED * self._expectations, DOUBTED * self._found
        return not waited

    @property
    def widths(self) -> list[int]:
        """All that are chosen from, from 0 up."""
        return self._widths

    def choose(self, requests: int, expected: Callable[[int], float] | None = None) -> int:
        """Draft tokens of each of so many requests in the next step.

        `expected` says how many of that number for each are accepted, of all requests together.
        Without it the acceptance rate observed counts, and drafts are tried now and then.
        """
        if not requests:
            return self._widths[-1]
        tried, steps = self._again
        if steps:
            self._again = tried, steps - 1
            return tried
        probing = expected is None and self._plain >= PROBED
        if expected is None:
            expected = _accepted({self._observed_rate(): requests})
        worth = max(self._tokens / self._time, 1.0) if self._time else 1.0
        share = min((self._found + TRUSTED) / (self._expectations + TRUSTED), 1.0)
        accepted = {width: share * expected(width) / requests for width in self._widths}
        waits = worth * max(self._times.cost(requests, AFTER_DRAFTS) - 1.0, 0.0)
        gains = {
            width: tokens
            - worth * self._times.cost(requests, width)
            - (waits if self._plain and width else 0.0)
            for width, tokens in accepted.items()
        }
        best = max(gains, key=gains.__getitem__)
        losses = {width: TRIAL * (gains[best] - gain) for width, gain in gains.items()}
        losses[0] = PLAIN_TRIAL * (gains[best] - gains[0]) + waits
        chosen = self._trial(requests, best, accepted, worth, losses)
        if chosen is None:
            chosen = best or (self._widths[1] if probing else 0)
            self._plain = 0 if chosen else self._plain + 1
        self._expected[chosen] = accepted[chosen] / share
        return chosen

    def _trial(
        self,
        requests: int,
        best: int,
        accepted: dict[int, float],
        worth: float,
        losses: dict[int, float],
    ) -> int | None:
        """What is measured anew in this step, if anything: no drafts or a width beside the best
        one, whichever was seen longest ago; from no drafts the most likely width, if it would pay
        were a step hardly longer with it. `losses` are tokens of a request, and small enough."""
        share = TRIALS * (1.0 + accepted[best])
        self._allowed = [min(each + share, SAVED * share) for each in self._allowed]
        self._since += 1
        if self._since < APART:
            return None
        if best:
            place = self._widths.index(best)
            near = self._widths[max(place - 1, 1) : place + 2]
            others = [0, *(width for width in near if width != best)]
        else:
            least = {
                width: accepted[width] - worth * (DRAFTED + RISE * requests * width)
                for width in self._widths[1:]
            }
            likely = max(least, key=least.__getitem__)
            others = [likely] if least[likely] > 0 else []
        others = [width for width in others if losses[width] <= self._allowed[width > 0]]
        if best and accepted[best] < worth * (self._times.cost_at_most(requests, best) - 1.0):
            others = [0]
        if not others:
            return None
        trial = max(others, key=lambda width: self._times.unseen(requests, width))
        self._allowed[trial > 0] -= losses[trial]
        self._since, self._again = 0, (trial, (TRIAL if trial else PLAIN_TRIAL) - 1)
        return trial

    def _observed_rate(self) -> float:
        return (self._right + FIRST_RATE) / (self._right + self._wrong + 1.0)


def accepted_at(rates: Sequence[float]) -> Callable[[int], float]:
    """Draft tokens that are accepted of a number for each request, by the acceptance rates of what
    was found for them a step ago; 0 without a match. In the step between it has gone on, which
    makes it more likely, or ended, which leaves a chance that something else is found: both
    together are about (1 + rate) / 2 of it."""
    counts = {rate: (1 + rate) / 2 * count for rate, count in Counter(rates).items()}
    return _accepted(counts)


def _accepted(counts: Mapping[float, float]) -> Callable[[int], float]:
    """Draft tokens that are accepted of a number for each request, by how many have which rate."""

    def accepted(width: int) -> float:
        return sum(
            count * (rate * (1 - rate**width) / (1 - rate) if rate < 1 else width)
            for rate, count in counts.items()
        )

    return accepted
