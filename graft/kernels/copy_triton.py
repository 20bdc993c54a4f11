"""Copies found on the device: for every row of a batch the latest longest match of its last tokens.

Nothing waits for the host, and a step takes three launches: `append_sampled` adds what was sampled
to the text and counts whether the tokens behind the last match were right, `search_copies` finds
matches in parallel parts, and `draft_copies` writes the tokens behind them. Matches are also
checked where nothing was drafted: their first token is compared with the next of the text.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import Launcher

LONGEST = 16  # tokens of a match that are compared
BLOCK = 1024  # positions of a program
RATE_UNIT = 1024  # acceptance rates leave the device as integers of 1 / RATE_UNIT


class DraftState:
    """What stays on the device between steps, for at most so many rows of text.

    `places` says which row of text belongs to each row of a batch: the same one, unless told.
    """

    def __init__(
        self, rows: int, prior: Tensor, device: torch.device, vocabulary: int, max_drafted: int
    ) -> None:
        """Token ids are below the vocabulary, and drafts have at most so many tokens."""
        self.vocabulary, self.max_drafted = vocabulary, max_drafted
        self.seen = prior.clone()  # [2, lengths]: right and wrong tokens behind matches
        self.places = torch.arange(rows, device=device)
        self.best, self.newest = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2)
        )
        # Of the text; new tokens of the last step; the last match, 0 once it is checked; the token
        # behind it; its acceptance rate in units of 1 / RATE_UNIT
        self.lengths, self.new, self.matched, self.guess, self.rates = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(5)
        )


def append_sampled(
    sampled: Tensor, discarded: Tensor, text: Tensor, state: DraftState
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the valid ones of the sampled tokens [B, T] behind the first B rows of text [R, M], and
    count whether drafts of T - 1 tokens were right. What does not fit is left out.

    Returns the last valid token [B] of each row, or else the last of its text; the number [B] of
    valid ones; and the sampled tokens with -1 for those of rows that are `discarded` [>= B]. -1 and
    tokens beyond the vocabulary are not valid.
    """
    rows, columns = sampled.shape
    valid = torch.empty(rows, columns, dtype=sampled.dtype, device=sampled.device)
    counts = torch.empty(rows, dtype=torch.int32, device=sampled.device)
    last = torch.empty(rows, dtype=text.dtype, device=sampled.device)
    found = discarded, None, valid, counts, last
    _append(sampled, found, text, state, state.places)
    return last, counts, valid


def append_counted(
    sampled: Tensor, counts: Tensor | None, text: Tensor, state: DraftState, places: Tensor
) -> None:
    """Write the first `counts` [B] of the sampled tokens [B, T], or all, behind rows `places` [B]
    of text [R, M]; otherwise like `append_sampled`."""
    _append(sampled, (None, counts, None, None, None), text, state, places)


def _append(
    sampled: Tensor,
    found: tuple[Tensor | None, ...],
    text: Tensor,
    state: DraftState,
    places: Tensor,
) -> None:
    rows, columns = sampled.shape
    width = triton.next_power_of_2(state.max_drafted + 1)
    types = (each if each is None else each.dtype for each in (sampled, *found[:2]))
    _append_sampled(
        (*types, width),
        (rows, 1, 1),
        (
            sampled, *found, text, state.lengths, state.new, state.newest, state.best, places,
            state.seen, state.matched, state.guess, text.stride(0), text.shape[1],
            sampled.stride(0), columns, state.vocabulary,
        ),
        {"LENGTHS": state.seen.shape[1], "WIDTH": width},
        warps=1,
    )  # fmt: skip


@Launcher
def _append_sampled(
    sampled, discarded, limits, valid, counts, last, text, lengths, new, newest, best, places,
    seen, matched, guess, text_row, most, sampled_row, columns, vocabulary,
    LENGTHS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    column = tl.arange(0, WIDTH)
    token = tl.load(sampled + row * sampled_row + column, column < columns, other=-1)
    if discarded is not None:
        token = tl.where(tl.load(discarded + row), -1, token)
    if limits is not None:
        token = tl.where(column < tl.load(limits + row), token, -1)
    count = tl.sum(((token != -1) & (token < vocabulary)).to(tl.int32), 0)
    length = tl.load(lengths + place)
    start = text + place * text_row
    final = tl.sum(tl.where(column == count - 1, token, 0), 0)
    tl.store(newest + place, final.to(tl.int64), count > 0)
    if valid is not None:
        tl.store(valid + row * columns + column, token, column < columns)
        tl.store(counts + row, count)
        before = tl.load(start + tl.maximum(length - 1, 0))
        tl.store(last + row, tl.where(count > 0, final.to(before.dtype), before))
    target = length + column
    wanted = (column < count) & (token >= 0) & (target < most)
    tl.store(start + target, token.to(text.dtype.element_ty), wanted)
    tl.store(lengths + place, tl.minimum(length + count, most))
    tl.store(new + place, count)
    tl.store(best + place, tl.zeros((), tl.int64))
    match, tried = tl.load(matched + place), columns - 1
    first = tl.sum(tl.where(column == 0, token, 0), 0)
    goes_on = (first == tl.load(guess + place)).to(tl.int32)
    right = tl.where(tried > 0, tl.minimum(count - 1, tried), goes_on)
    known = (match > 0) & (count > 0)
    wrong = (right < tl.maximum(tried, 1)).to(tl.int32)
    tl.atomic_add(seen + match, right.to(tl.float32), known)
    tl.atomic_add(seen + LENGTHS + match, wrong.to(tl.float32), known)
    tl.store(matched + place, 0)


def search_copies(text: Tensor, rows: int, state: DraftState, places: Tensor | None = None) -> None:
    """Find the matches of `rows` rows of a batch, whose texts are `places` of text [R, M]."""
    _search(
        BLOCK,
        (rows, triton.cdiv(text.shape[1], BLOCK), 1),
        (
            text, state.lengths, state.best, state.places if places is None else places,
            text.stride(0),
        ),
        {"LONGEST": LONGEST, "BLOCK": BLOCK},
        warps=4,
    )  # fmt: skip


def draft_copies(  # noqa: PLR0913
    text: Tensor,
    rows: int,
    state: DraftState,
    drafted: int,
    places: Tensor | None = None,
    *,
    newest: bool = False,
) -> Tensor:
    """Drafts [B, drafted] of B rows of a batch, behind the matches that
    `search_copies` found; with `newest` each behind the token appended last, in 64 bits.
    `state.rates` has how often tokens behind such matches are right.

    Of several longest matches the last counts. A draft that reaches the end of the text goes on
    from its own beginning. A row without a match, or without a token of the last step, has zeros,
    and so has a draft where the text has -1, the end of a document.
    """
    kind = torch.int64 if newest else torch.int32
    draft = torch.empty(rows, drafted + newest, dtype=kind, device=text.device)
    width = triton.next_power_of_2(max(state.max_drafted, 1))
    _draft_copies(
        (newest, width),
        (rows, 1, 1),
        (
            text, state.lengths, state.best, state.new, state.newest, state.seen, draft,
            state.rates, state.matched, state.guess,
            state.places if places is None else places, text.stride(0), drafted,
        ),
        {"LENGTHS": state.seen.shape[1], "UNIT": RATE_UNIT, "WIDTH": width, "NEWEST": int(newest)},
        warps=1,
    )  # fmt: skip
    return draft


@Launcher
def _search(
    text, lengths, best, places, row_stride, LONGEST: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The longest match that ends at one of some positions, as its length and its position."""
    place = tl.load(places + tl.program_id(0))
    last = tl.load(lengths + place) - 1
    first = tl.program_id(1) * BLOCK
    if first < last:
        position = first + tl.arange(0, BLOCK)
        start = text + place * row_stride
        matches, length = position < last, tl.zeros((BLOCK,), tl.int32)
        for back in tl.static_range(LONGEST):
            token = tl.load(start + position - back, matches & (position >= back), other=-1)
            wanted = tl.load(start + last - back, last >= back, other=-2)
            matches = matches & (position >= back) & (token == wanted)
            length += matches.to(tl.int32)
        key = (length.to(tl.int64) << 32) | position.to(tl.int64)
        tl.atomic_max(best + place, tl.max(tl.where(length > 0, key, 0), 0))


@Launcher
def _draft_copies(
    text, lengths, best, new, newest, seen, draft, rates, matched, guess, places, row_stride,
    drafted, LENGTHS: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr,
    NEWEST: tl.constexpr,
):  # fmt: skip
    """The tokens behind a match, and how often tokens behind matches of its length are right."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    key, length = tl.load(best + place), tl.load(lengths + place)
    found = tl.where(tl.load(new + place) > 0, (key >> 32).to(tl.int32), 0)
    position = (key & 0xFFFFFFFF).to(tl.int32)
    period = tl.maximum(length - 1 - position, 1)
    column = tl.arange(0, WIDTH)
    source = text + place * row_stride + position + 1 + column % period
    token = tl.load(source, (column <= tl.maximum(drafted - 1, 0)) & (found > 0), other=0)
    token = tl.maximum(token, 0).to(draft.dtype.element_ty)
    target = draft + row * (drafted + NEWEST)
    if NEWEST:
        tl.store(target, tl.load(newest + place))
    tl.store(target + NEWEST + column, token, column < drafted)
    right, wrong = tl.load(seen + found), tl.load(seen + LENGTHS + found)
    rate = tl.where(found > 0, right / (right + wrong), 0.0)
    tl.store(rates + place, (rate * UNIT).to(tl.int32))
    tl.store(matched + place, found)
    tl.store(guess + place, tl.sum(tl.where(column == 0, token, 0), 0).to(tl.int32))
