"""The price of a row in another engine's step, estimated from step times.

Graft's own engine measures its steps at load; inside vLLM a drafter only sees the time between two
calls. Seconds grow with the rows of a step along a line, fitted to the steps seen, recent ones
more. Until rows have varied, and again once they have not for a while, the slope is `RISE`, so
that drafting is tried again.

The price of a row is the tokens that the engine generates in its time on average. Draft tokens
with a higher acceptance probability raise the tokens per second of the whole run; weighing each
step by itself would cut good drafts short and pad the others.
"""

RISE = 0.03  # of a step's time per additional row, before any measurement
KEPT = 0.98  # weight of a step one step later
PRIOR = 32.0  # squared rows: two steps four rows off the mean weigh as much as RISE
SETTLED = 5.0  # steps after which a much longer one is an outlier
DISTURBED = 2.0  # times the expected seconds


class RowPrice:
    """Decayed means and sums over the steps."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._tokens = 0.0
        self._spread = self._together = 0.0  # of rows; of rows and seconds

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Count a step."""
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
        """Tokens generated in the time of one more row, with so many requests running."""
        if not self._seconds:
            return RISE * requests / (1.0 + RISE * requests)
        return self._slope() * self._tokens / self._seconds

    def _slope(self) -> float:
        """Seconds of one more row, at most the mean per row."""
        usual = RISE * self._seconds / (1.0 + RISE * self._rows)
        slope = (self._together + PRIOR * usual) / (self._spread + PRIOR)
        return min(max(slope, 0.0), self._seconds / max(self._rows, 1.0))
