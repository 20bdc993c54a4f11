"""Copies found on the device, for the requests of another engine (`kernels/copy_triton.py`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRIOR = 4.0  # matches of each length that the first acceptance rate counts for
SEARCHED = 2  # plain steps of a run per search for copies
FORGOTTEN, EVERY = 0.1, 64  # of what was seen of matches, and after how many searches


class DeviceDrafts:
    """Drafts of a batch; its engine says how tokens are appended. The state stays on the device,
    and the host never waits for it.

    Texts are rows of a tensor [R, M]; `places` [B] says which row belongs to each request of a
    batch, in their order unless given.
    """

    def __init__(self, most: int, rows: int, vocabulary: int, device: "torch.device") -> None:
        """At most `most` draft tokens, of that vocabulary, for each of so many rows."""
        import torch

        from graft.kernels.copy_triton import LONGEST, DraftState

        lengths = 1 << LONGEST.bit_length()  # match lengths, padded to a power of two
        length = torch.arange(lengths, device=device, dtype=torch.float32)
        self._prior = torch.stack([length, torch.full_like(length, 2.0)]) * PRIOR / (length + 2)
        self._state = DraftState(rows, self._prior, device, vocabulary, most)
        self.most, self._device = most, device
        self._searches = self._plain = 0  # of these; plain steps in a row

    def move(self, text: "Tensor", moves: Sequence[tuple[int, int]]) -> None:
        """Move rows of text from places to others."""
        if moves:
            source, target = self._on_device(moves).unbind(1)
            state = self._state
            for each in (text, state.lengths, state.matched, state.guess):
                each[target] = each[source]

    def write(self, text: "Tensor", rows: "Mapping[int, Tensor]") -> None:
        """Begin rows of text anew, with tokens on the host."""
        import torch

        if not rows:
            return
        counts = [len(tokens) for tokens in rows.values()]
        placed = torch.tensor([*rows, *counts], dtype=torch.int32)
        given = torch.cat([placed, *rows.values()]).int()  # one copy, as each takes as long
        given = (given.pin_memory() if text.is_cuda else given).to(text.device, non_blocking=True)
        placed, tokens = given[: len(placed)], given[len(placed) :]
        for place, own in zip(rows, tokens.split(counts), strict=True):
            text[place, : len(own)] = own
        target, count = placed.long().chunk(2)
        self._state.lengths[target] = count.to(self._state.lengths.dtype)
        for each in (self._state.matched, self._state.rates):
            each.index_fill_(0, target, 0)  # assigning a number would wait

    def searches(self, *, plain: bool) -> bool:
        """Whether the step that is counted searches: one of SEARCHED plain ones, all others."""
        self._plain = self._plain + 1 if plain else 0
        return self._plain % SEARCHED == 0

    def search(self, text: "Tensor", rows: int, places: "Tensor | None" = None) -> None:
        """Find what the texts of a batch may go on with."""
        from graft.kernels.copy_triton import search_copies

        self._searches += 1
        if self._searches % EVERY == 0:
            self._state.seen.lerp_(self._prior, FORGOTTEN)
        search_copies(text, rows, self._state, places)

    def draft(
        self,
        drafted: int,
        text: "Tensor",
        rows: int,
        places: "Tensor | None" = None,
        *,
        newest: bool = False,
    ) -> "Tensor":
        """See `draft_copies`."""
        from graft.kernels.copy_triton import draft_copies

        return draft_copies(text, rows, self._state, drafted, places, newest=newest)

    @property
    def newest(self) -> "Tensor":
        """The token of each row that was appended last, in 64 bits."""
        return self._state.newest

    @property
    def rates(self) -> "Tensor":
        """Of the drafts of all rows, in units of 1 / RATE_UNIT; 0 without a match."""
        return self._state.rates

    def compile(self, text: "Tensor", *, newest: bool = False) -> None:
        """Compile the kernels for texts of that shape, and forget what `append` did meanwhile."""
        self.search(text, 1)
        for drafted in (0, self.most):
            self.draft(drafted, text, 1)
        if newest:
            self.draft(self.most, text, 1, newest=True)
        self._state.seen.copy_(self._prior)
        self._state.matched.zero_()

    def _on_device(self, pairs: Sequence[tuple[int, int]]) -> "Tensor":
        import torch

        found = torch.tensor(pairs, pin_memory=self._device.type == "cuda")
        return found.to(self._device, non_blocking=True)


class ReportedRates:
    """Acceptance rates as the device reports them: by places, and without a wait."""

    def __init__(self) -> None:
        self._places: Mapping[str, int] = {}  # of requests, when they were read last

    def read(self, reported: "Tensor", places: Mapping[str, int]) -> dict[str, float]:
        """What was reported for requests that had these places when rates were read last; for
        others that came or moved since, it is another's.

        The device may write meanwhile, and at first it is anything: rates choose the next width
        and nothing else.
        """
        from graft.kernels.copy_triton import RATE_UNIT

        found, before = (reported.clamp(0, RATE_UNIT) / RATE_UNIT).tolist(), self._places
        self._places = dict(places)
        return {name: found[place] for name, place in places.items() if before.get(name) == place}
