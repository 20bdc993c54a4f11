"""How many draft tokens all requests of another engine's step get.

An engine that schedules the next step while this one runs must know its size before the drafts. So
every request gets the same number of draft tokens, chosen from the acceptance rates of the drafts
of a step or two ago and from measured step times; 0 makes a plain step.
"""

from collections.abc import Sequence

from graft.integrations.row_price import RowPrice

STEP_COST = 0.1  # of a step's time: what verifying any draft costs, whatever its length
PROBED = 32  # steps without drafts after which they are tried, where no rates arrive
FIRST_RATE, KEPT = 0.5, 0.95  # the acceptance rate before any draft; its weight a step later


class DraftWidth:
    """Chooses the number of draft tokens with the most tokens per second."""

    def __init__(self, max_width: int) -> None:
        """At most max_width; of others those that make 2, 4, 8, ... rows of a request, because
        engines pad steps to such sizes."""
        powers = (2**power - 1 for power in range(1, 8))
        self._widths = sorted({0, max_width, *(each for each in powers if each < max_width)})
        self._price = RowPrice()
        self._right = self._wrong = 0.0
        self._plain = 0  # steps in a row

    def observe(self, width: int, counts: Sequence[int], seconds: float) -> None:
        """Count a step: the tokens that each request generated with `width` draft tokens."""
        if not counts:
            return
        self._price.observe(len(counts) * (1 + width), sum(counts), seconds)
        if width:
            right = sum(count - 1 for count in counts)
            self._right = KEPT * self._right + right
            self._wrong = KEPT * self._wrong + sum(count <= width for count in counts)

    def choose(self, requests: int, rates: Sequence[float] | None = None) -> int:
        """Draft tokens of each of so many requests in the next step.

        `rates` are acceptance rates of the draft tokens of requests, 0 without a draft. Without
        rates those observed count for all, and drafts are tried now and then.
        """
        if not requests:
            return self._widths[-1]
        probing = rates is None and self._plain >= PROBED
        if rates is None:
            rates = [self._observed_rate()] * requests
        price = self._price.price(requests)
        gains = {width: _gain(width, rates, price * requests) for width in self._widths}
        best = max(
            self._widths, key=lambda width: gains[width] - STEP_COST * requests * (width > 0)
        )
        best = best or (self._widths[1] if probing else 0)
        self._plain = 0 if best else self._plain + 1
        return best

    def _observed_rate(self) -> float:
        return (self._right + FIRST_RATE) / (self._right + self._wrong + 1.0)


def _gain(width: int, rates: Sequence[float], price: float) -> float:
    """Tokens expected from drafts of `width` tokens, less those that plain steps would generate in
    the time of their rows: `price` per row of every request."""
    expected = sum(rate * (1 - rate**width) / (1 - rate) if rate < 1 else width for rate in rates)
    return expected - width * price
