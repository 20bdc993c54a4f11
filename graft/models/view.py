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
        return [*self._chosen, *self._seen, (self.start, self.length)]

    @property
    def starts(self) -> list[int]:
        """See Extent. Gathered rows count as those right before the first span."""
        before = [self.spans[0][0] - count for _, count in self._chosen]
        return [*before, *(position for position, _ in self._parts()), self.position - self.length]

    @property
    def sees(self) -> int:
        """How many rows of other extents."""
        return sum(count for _, count in self.segments[:-1])

    @property
    def _chosen(self) -> list[tuple[int, int]]:
        return self.chosen.segments if self.chosen else []

    @property
    def _seen(self) -> list[tuple[int, int]]:
        return [segment for _, segment in self._parts()]

    def _parts(self) -> list[tuple[int, tuple[int, int]]]:
        """The position and the segment of every stretch of the base."""
        whole, parts = self.base.segments, []
        for position, last in self.spans:
            for segment in between(whole, position, last):
                parts.append((position, segment))
                position += segment[1]
        return parts
