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

LONGEST = 16  # tokens of a match that are compared
BLOCK = 1024  # positions of a program
RATE_UNIT = 1024  # acceptance rates leave the device as integers of 1 / RATE_UNIT


class DraftState:
    """What stays on the device between steps, for at most so many rows of text.

    `places` says which row of text belongs to each row of a batch: the same one, unless told.
    """

    def __init__(self, rows: int, prior: Tensor, device: torch.device) -> None:
        self.seen = prior.clone()  # [2, lengths]: right and wrong tokens behind matches
        self.places = torch.arange(rows, device=device)
        self.best = torch.zeros(rows, dtype=torch.int64, device=device)
        # Of the text; of the last match, 0 once it is checked; its draft; the token behind it
        self.lengths, self.matched, self.drafted, self.guess = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(4)
        )


def append_sampled(  # noqa: PLR0913
    sampled: Tensor,
    discarded: Tensor,
    text: Tensor,
    state: DraftState,
    vocabulary: int,
    max_columns: int,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the valid ones of the sampled tokens [B, T] behind rows `places` [B] of text [R, M]
    with lengths `state.lengths`, which grow. What does not fit is left out.

    Returns the last valid token [B] of each row, or else the last of its text; the number [B] of
    valid ones; and the sampled tokens with -1 for those of rows that are `discarded` [>= B]. -1 and
    tokens beyond the vocabulary are not valid. `state.seen` counts whether matches went on.
    """
    rows, columns = sampled.shape
    valid = torch.empty(rows, columns, dtype=sampled.dtype, device=sampled.device)
    counts = torch.empty(rows, dtype=torch.int32, device=sampled.device)
    last = torch.empty(rows, dtype=text.dtype, device=sampled.device)
    places = state.places if places is None else places
    _append_sampled[(rows,)](
        sampled, discarded, text, state.lengths, valid, counts, last, state.best, places,
        state.seen, state.matched, state.drafted, state.guess, text.stride(0), text.shape[1],
        sampled.stride(0), columns, vocabulary, LENGTHS=state.seen.shape[1],
        WIDTH=triton.next_power_of_2(max_columns), num_warps=1,
    )  # fmt: skip
    return last, counts, valid


@triton.jit(do_not_specialize=["sampled_row", "columns"])
def _append_sampled(
    sampled, discarded, text, lengths, valid, counts, last, best, places, seen, matched, drafted,
    guess, text_row, most, sampled_row, columns, vocabulary, LENGTHS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    column = tl.arange(0, WIDTH)
    token = tl.load(sampled + row * sampled_row + column, column < columns, other=-1)
    token = tl.where(tl.load(discarded + row), -1, token)
    count = tl.sum(((token != -1) & (token < vocabulary)).to(tl.int32), 0)
    tl.store(valid + row * columns + column, token, column < columns)
    tl.store(counts + row, count)
    length = tl.load(lengths + place)
    start = text + place * text_row
    before = tl.load(start + tl.maximum(length - 1, 0))
    final = tl.sum(tl.where(column == count - 1, token, 0), 0)
    tl.store(last + row, tl.where(count > 0, final.to(before.dtype), before))
    target = length + column
    wanted = (column < count) & (token >= 0) & (target < most)
    tl.store(start + target, token.to(text.dtype.element_ty), wanted)
    tl.store(lengths + place, tl.minimum(length + count, most))
    tl.store(best + place, tl.zeros((), tl.int64))
    match, tried = tl.load(matched + place), tl.load(drafted + place)
    first = tl.sum(tl.where(column == 0, token, 0), 0)
    goes_on = (first == tl.load(guess + place)).to(tl.int32)
    right = tl.where(tried > 0, tl.minimum(count - 1, tried), goes_on)
    known = (match > 0) & (count > 0)
    wrong = (right < tl.maximum(tried, 1)).to(tl.int32)
    tl.atomic_add(seen + match, right.to(tl.float32), known)
    tl.atomic_add(seen + LENGTHS + match, wrong.to(tl.float32), known)
    tl.store(matched + place, 0)
    tl.store(drafted + place, 0)


def search_copies(text: Tensor, rows: int, state: DraftState, places: Tensor | None = None) -> None:
    """Find the matches of `rows` rows of a batch, whose texts are `places` of text [R, M]."""
    _search[(rows, triton.cdiv(text.shape[1], BLOCK))](
        text, state.lengths, state.best, state.places if places is None else places,
        text.stride(0), LONGEST=LONGEST, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def draft_copies(  # noqa: PLR0913
    text: Tensor,
    counts: Tensor,
    state: DraftState,
    drafted: int,
    most: int,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Drafts [B, drafted], drafted <= most, behind the matches that `search_copies` found, and the
    acceptance rates [B] of their tokens in units of 1 / RATE_UNIT.

    Of several longest matches the last counts. A draft that reaches the end of the text goes on
    from its own beginning. A row without a match, or without one of `counts` [B] new tokens, has
    zeros, and so has a draft where the text has -1, the end of a document.
    """
    rows = len(counts)
    draft = torch.empty(rows, drafted, dtype=torch.int32, device=text.device)
    rates = torch.empty(rows, dtype=torch.int32, device=text.device)
    _draft_copies[(rows,)](
        text, state.lengths, state.best, counts, state.seen, draft, rates, state.matched,
        state.drafted, state.guess, state.places if places is None else places, text.stride(0),
        drafted, LENGTHS=state.seen.shape[1], UNIT=RATE_UNIT,
        WIDTH=triton.next_power_of_2(max(most, 1)), num_warps=1,
    )  # fmt: skip
    return draft, rates


@triton.jit
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


@triton.jit(do_not_specialize=["drafted"])
def _draft_copies(
    text, lengths, best, counts, seen, draft, rates, matched, tried, guess, places, row_stride,
    drafted, LENGTHS: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The tokens behind a match, and how often tokens behind matches of its length are right."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    key, length = tl.load(best + place), tl.load(lengths + place)
    found = tl.where(tl.load(counts + row) > 0, (key >> 32).to(tl.int32), 0)
    position = (key & 0xFFFFFFFF).to(tl.int32)
    period = tl.maximum(length - 1 - position, 1)
    column = tl.arange(0, WIDTH)
    source = text + place * row_stride + position + 1 + column % period
    token = tl.load(source, (column <= tl.maximum(drafted - 1, 0)) & (found > 0), other=0)
    tl.store(draft + row * drafted + column, tl.maximum(token, 0).to(tl.int32), column < drafted)
    right, wrong = tl.load(seen + found), tl.load(seen + LENGTHS + found)
    rate = tl.where(found > 0, right / (right + wrong), 0.0)
    tl.store(rates + row, (rate * UNIT).to(tl.int32))
    tl.store(matched + place, found)
    tl.store(tried + place, tl.where(found > 0, drafted, 0))
    tl.store(guess + place, tl.sum(tl.where(column == 0, token, 0), 0).to(tl.int32))
