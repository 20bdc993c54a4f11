"""How many draft tokens all requests of another engine's step get.

An engine that schedules the next step while this one runs must know its size before the drafts. So
every request gets the same number of draft tokens, chosen from the acceptance rates of the drafts
of a step or two ago and from measured step times; 0 makes a plain step.
"""

from collections.abc import Callable, Sequence

from graft.integrations.step_times import DISTURBED, DRAFTED, StepTimes, kind_of

PROBED = 32  # steps without drafts after which they are tried, where no rates arrive
FIRST_RATE, KEPT = 0.5, 0.95  # the acceptance rate before any draft; its weight a step later
SHORTEST = 1e-9  # seconds
FIRST_TRIAL, LAST_TRIAL = 4, 512  # steps between two trials of other widths; they double
WAITS = 4.0  # plain steps right after drafts that their mean is of
RECENT = 0.98  # weight of a step one step later, in the tokens per second of the run


class DraftWidth:
    """Chooses the number of draft tokens with the most tokens per second.

    The time of a step is worth the tokens that the run generates in it on average: weighing each
    step by itself would cut good drafts short and pad the others. The plain step right after drafts
    takes longer; who begins to draft will stop, so that counts where drafts begin.
    """

    def __init__(self, max_width: int, fewest: int = 1) -> None:
        """At most max_width; of others those that make 2, 4, 8, ... rows of a request, because
        engines pad steps to such sizes. Drafts have at least the fewest of these."""
        powers = (2**power - 1 for power in range(1, 8))
        between = (each for each in powers if fewest <= each < max_width)
        self._widths = sorted({0, max_width, *between})
        self._times = StepTimes()
        self._wait = 0.0  # seconds by which a plain step right after drafts takes longer
        self._tokens = self._seconds = 0.0  # of recent steps
        self._right = self._wrong = 0.0
        self._plain = 0  # steps in a row
        self._drafted = False  # the last step
        self._again = False  # whether the trial of a plain step has a second one
        self._trials: dict[int, tuple[int, int]] = {}  # by requests: steps to the next, and after

    def observe(self, width: int, counts: Sequence[int], seconds: float) -> bool:
        """Count a step: the tokens that each request generated with `width` draft tokens. Returns
        whether it was as long as such steps in a row are.

        A plain step right after drafts is not: the device waited, because the host had to know the
        tokens of these.
        """
        if not counts:
            return False
        waited, self._drafted = self._drafted and not width, width > 0
        if waited:
            usual = self._times.seconds(len(counts), 0)
            longer = min(max(seconds - usual, 0.0), DISTURBED * (usual + self._wait) - usual)
            self._wait += (longer - self._wait) / WAITS
            counted = usual + longer
        else:
            counted = self._times.observe(len(counts), width, seconds)
        self._tokens = RECENT * self._tokens + sum(counts)
        self._seconds = RECENT * self._seconds + counted
        if width:
            right = sum(count - 1 for count in counts)
            self._right = KEPT * self._right + right
            self._wrong = KEPT * self._wrong + sum(count <= width for count in counts)
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
        if self._again:
            self._again = False
            return 0
        probing = expected is None and self._plain >= PROBED
        if expected is None:
            expected = accepted_at([self._observed_rate()] * requests)
        plain = max(self._times.seconds(requests, 0), SHORTEST)
        speed = max(self._tokens / max(self._seconds, SHORTEST), requests / plain)
        wait = self._wait if self._plain else 0.0

        def gain(width: int) -> float:
            seconds = self._times.seconds(requests, width) + (wait if width else 0.0)
            return expected(width) - speed * seconds

        best = max(self._widths, key=gain)
        if best or expected(self._widths[-1]) > speed * (DRAFTED * plain + wait):
            best = self._trial(best, requests)
        best = best or (self._widths[1] if probing else 0)
        self._plain = 0 if best else self._plain + 1
        return best

    def _trial(self, best: int, requests: int) -> int:
        """Now and then another width whose time is known least: no drafts, or one beside the best.
        Without a plain step it is not known what drafts cost. Drafts are not tried where they would
        not pay if a step were hardly longer with them."""
        kind = kind_of(requests)
        left, pause = self._trials.get(kind, (FIRST_TRIAL, FIRST_TRIAL))
        if left:
            self._trials[kind] = left - 1, pause
            return best
        self._trials[kind] = pause, min(2 * pause, LAST_TRIAL)
        place = self._widths.index(best)
        others = {0, *self._widths[max(place - 1, 0) : place + 2]} - {best}
        tried = min(others, key=lambda width: self._times.weight(requests, width))
        self._again = tried == 0
        return tried

    def _observed_rate(self) -> float:
        return (self._right + FIRST_RATE) / (self._right + self._wrong + 1.0)


def accepted_at(rates: Sequence[float]) -> Callable[[int], float]:
    """Draft tokens that are accepted of a number for each request, by the acceptance rates of
    theirs; 0 without a draft."""

    def accepted(width: int) -> float:
        return sum(rate * (1 - rate**width) / (1 - rate) if rate < 1 else width for rate in rates)

    return accepted
