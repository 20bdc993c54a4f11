"""Views: attention over a part of a sequence's rows (MagicDec, TriForce).

A view copies nothing: it names spans of another extent's committed tokens and has a few rows of
its own behind them, for draft tokens. Tokens keep their positions. Rows chosen by layer and head
are gathered into an extent of their own, which comes first.
"""

from dataclasses import dataclass

from graft.models.arena import Extent, between


@dataclass(slots=True, eq=False)
class View(Extent):
    """Rows behind a part of what `base` has committed. It takes no reference to `base` or `chosen`:
    close the view before them."""

    base: Extent | None = None
    chosen: Extent | None = None  # gathered rows of tokens before the spans
    spans: tuple[tuple[int, int], ...] = ()

    def look(self, *spans: tuple[int, int]) -> None:
        """Attend to these tokens of the base (first, one behind the last) from now on. The view's
        own rows are discarded; new ones follow the last span."""
        self.spans, self.shared, self.length = spans, spans[-1][1], 0
        self.skipped = self.base.skipped

    @property
    def segments(self) -> list[tuple[int, int]]:
        """See Extent. Looked up every time, because the base may move."""
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
        """Number of rows of other extents."""
        return sum(count for _, count in self.segments[:-1])
