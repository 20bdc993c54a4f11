"""What a row of somebody else's engine costs, learned from how long its steps took.

Graft's own engine measures its steps at load; inside vLLM a drafter only sees the time between two
calls. Seconds are taken to grow with the rows of a step along a line, which on a CPU they nearly
do, fitted to the steps seen, recent ones more. Until rows have varied, and again once they have
not for a while, the line rises as `RISE` says, so drafting that seemed too dear is tried again.

A row more is paid with the tokens that the engine makes in its time on average. Guesses likelier
than that price raise the tokens per second of the whole run; weighing each step by itself would cut
sure drafts short and pad the others.
"""

RISE = 0.03  # of a step's time for every row more, where nothing else is known
KEPT = 0.98  # weight of a step one step later
PRIOR = 32.0  # squared rows: two steps that are four rows off the mean weigh as much as RISE
SETTLED = 5.0  # steps after which one that takes much too long counts as a disturbance
DISTURBED = 2.0  # times what was expected


class RowPrice:
    """The line and the rate, as decayed means and sums over the steps."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._tokens = 0.0
        self._spread = self._together = 0.0  # of rows; of rows and seconds

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step over so many rows brought so many tokens and took so long."""
        if self._weight > SETTLED:
            expected = self._seconds + self._slope() * (rows - self._rows)
            seconds = min(seconds, DISTURBED * expected)
        self._weight = KEPT * self._weight + 1.0
        off = rows - self._rows
        self._rows += off / self._weight
        self._spread = KEPT * self._spread + off * (rows - self._rows)
        self._together = KEPT * self._together + (rows - self._rows) * (seconds - self._seconds)
        self._seconds += (seconds - self._seconds) / self._weight
        self._tokens += (tokens - self._tokens) / self._weight

    def price(self, requests: int) -> float:
        """The tokens that the time of one row more is worth, with so many requests running."""
        if not self._seconds:
            return RISE * requests / (1.0 + RISE * requests)
        return self._slope() * self._tokens / self._seconds

    def _slope(self) -> float:
        """Seconds for a row more, no more than rows cost on average."""
        usual = RISE * self._seconds / (1.0 + RISE * self._rows)
        slope = (self._together + PRIOR * usual) / (self._spread + PRIOR)
        return min(max(slope, 0.0), self._seconds / max(self._rows, 1.0))
