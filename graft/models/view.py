"""Looking at a part of a sequence's rows: the same weights, fewer keys (MagicDec, TriForce).

A view copies nothing: it names stretches of another extent's committed tokens and has a few rows of
its own behind them, for what is drafted. Tokens keep their positions. Rows that were chosen by
layer and head cannot be named that way; they are gathered into an extent which stands before.
"""

from dataclasses import dataclass

from graft.models.arena import Extent, between


@dataclass(slots=True, eq=False)
class View(Extent):
    """Rows behind a part of what `base` has committed. It holds on to neither `base` nor `chosen`:
    whoever opens it closes it first."""

    base: Extent | None = None
    chosen: Extent | None = None  # gathered rows of tokens before the spans
    spans: tuple[tuple[int, int], ...] = ()

    def look(self, *spans: tuple[int, int]) -> None:
        """See these tokens of the base (first, one behind the last) from now on; the view's own
        rows are forgotten and will stand behind the last of them."""
        self.spans, self.shared, self.length = spans, spans[-1][1], 0
        self.skipped = self.base.skipped

    @property
    def segments(self) -> list[tuple[int, int]]:
        """See Extent. The base may have moved, so they are looked up every time."""
        return self.placed[0]

    @property
    def placed(self) -> tuple[list[tuple[int, int]], list[int]]:
        """See Extent. Gathered rows count as those right before the first span."""
        segments = list(self.chosen.segments) if self.chosen else []
        starts = [self.spans[0][0] - count for _, count in segments]
        whole = self.base.segments
        for position, last in self.spans:
            for segment in between(whole, position, last):
                segments.append(segment)
                starts.append(position)
                position += segment[1]
        return [*segments, (self.start, self.length)], [*starts, self.position - self.length]

    @property
    def sees(self) -> int:
        """How many rows of other extents."""
        return sum(count for _, count in self.segments[:-1])
