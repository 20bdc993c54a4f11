"""Copies found on the device: for every row of a batch the latest longest match of its last tokens.

Nothing waits for the host, and a step takes four launches: `count_sampled` reads what was sampled,
`append_tokens` adds it to the text and counts the fate of the last drafts, `search` finds matches
in parallel parts, and `draft_copies` writes the tokens behind them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 16  # tokens of a match that are compared
BLOCK = 1024  # positions of a program
OBSERVED = 64  # rows whose last drafts are counted at a time
RATE_UNIT = 1024  # acceptance rates leave the device as integers of 1 / RATE_UNIT


def count_sampled(
    sampled: Tensor, discarded: Tensor, text: Tensor, lengths: Tensor, vocabulary: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of sampled tokens [B, T], T <= width, the last valid one [B], their number [B], and they
    themselves with -1 for the others; a row without one gets the last token of its text.

    Rows that are `discarded` [B] have none. -1 and tokens beyond the vocabulary are not valid.
    """
    rows, columns = sampled.shape
    valid = torch.empty(rows, columns, dtype=sampled.dtype, device=sampled.device)
    counts = torch.empty(rows, dtype=torch.int32, device=sampled.device)
    last = torch.empty(rows, dtype=text.dtype, device=sampled.device)
    _count_sampled[(rows,)](
        sampled, discarded, text, lengths, valid, counts, last, text.stride(0), sampled.stride(0),
        columns, vocabulary, WIDTH=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return last, counts, valid


@triton.jit(do_not_specialize=["sampled_row", "columns"])
def _count_sampled(
    sampled, discarded, text, lengths, valid, counts, last, text_row, sampled_row, columns,
    vocabulary, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    token = tl.load(sampled + row * sampled_row + place, place < columns, other=-1)
    token = tl.where(tl.load(discarded + row), -1, token)
    count = tl.sum(((token != -1) & (token < vocabulary)).to(tl.int32), 0)
    tl.store(valid + row * columns + place, token, place < columns)
    tl.store(counts + row, count)
    before = tl.load(text + row * text_row + tl.maximum(tl.load(lengths + row) - 1, 0))
    final = tl.sum(tl.where(place == count - 1, token, 0), 0)
    tl.store(last + row, tl.where(count > 0, final.to(before.dtype), before))


def append_tokens(
    text: Tensor, lengths: Tensor, new: Tensor, counts: Tensor, state: "DraftState", width: int
) -> None:
    """Write the first counts [B] of the new tokens [B, T], T <= width, behind rows of text [B, M]
    with these lengths [B]; -1 is no token, and what does not fit is left out.

    Then the text has lengths `state.lengths`, and `state.seen` has what became of the last drafts.
    """
    rows, columns = new.shape
    _append_tokens[(rows + 1,)](
        text, lengths, new, counts, state.lengths, state.best, state.seen, state.prior,
        state.matched, state.drafted, rows, text.stride(0), text.shape[1], new.stride(0), columns,
        state.decay, WIDTH=triton.next_power_of_2(width), OBSERVED=OBSERVED,
        LENGTHS=state.seen.shape[1], num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "new_row", "columns"])
def _append_tokens(
    text, lengths, new, counts, now, best, seen, prior, matched, drafted, rows, text_row, most,
    new_row, columns, decay, WIDTH: tl.constexpr, OBSERVED: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """A program per row, and one that counts accepted and rejected tokens by match length."""
    row = tl.program_id(0).to(tl.int64)
    if row < rows:
        place = tl.arange(0, WIDTH)
        token = tl.load(new + row * new_row + place, place < columns, other=-1)
        length, count = tl.load(lengths + row), tl.load(counts + row)
        target = length + place
        wanted = (place < count) & (token >= 0) & (target < most)
        tl.store(text + row * text_row + target, token.to(text.dtype.element_ty), wanted)
        tl.store(now + row, tl.minimum(length + count, most).to(tl.int32))
        tl.store(best + row, tl.zeros((), tl.int64))
    else:
        kind = tl.arange(0, LENGTHS)
        taken = tl.zeros((LENGTHS,), tl.float32)
        missed = tl.zeros((LENGTHS,), tl.float32)
        for first in range(0, rows, OBSERVED):
            other = first + tl.arange(0, OBSERVED)
            inside = other < rows
            sampled = tl.load(counts + other, inside, other=0)
            tried = tl.load(drafted + other, inside, other=0)
            accepted = tl.minimum(tl.maximum(sampled - 1, 0), tried)
            rejected = (accepted < tried) & (sampled > 0)
            same = tl.load(matched + other, inside, other=0)[:, None] == kind[None, :]
            taken += tl.sum(tl.where(same, accepted[:, None], 0).to(tl.float32), 0)
            missed += tl.sum(tl.where(same, rejected.to(tl.int32)[:, None], 0).to(tl.float32), 0)
        for fate in tl.static_range(2):
            entry = fate * LENGTHS + kind
            usual = tl.load(prior + entry)
            kept = usual + decay * (tl.load(seen + entry) - usual)
            tl.store(seen + entry, kept + (taken if fate == 0 else missed))


class DraftState:
    """What stays on the device between steps, for at most so many rows."""

    def __init__(self, rows: int, prior: Tensor, decay: float, device: torch.device) -> None:
        self.prior, self.seen, self.decay = prior, prior.clone(), decay  # [2, lengths]
        self.best = torch.zeros(rows, dtype=torch.int64, device=device)
        self.lengths, self.matched, self.drafted = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(3)
        )


def draft_copies(
    text: Tensor, counts: Tensor, state: DraftState, drafted: int, most: int
) -> tuple[Tensor, Tensor]:
    """Drafts [B, drafted], drafted <= most, of rows of text [B, M] with lengths `state.lengths`,
    and the acceptance rates [B] of their tokens in units of 1 / RATE_UNIT.

    Of several longest matches the last counts. A draft that reaches the end of the text goes on
    from its own beginning. A row without a match, or without a new token, has zeros.
    """
    rows, longest = text.shape
    _search[(rows, triton.cdiv(longest, BLOCK))](
        text, state.lengths, state.best, text.stride(0), LONGEST=LONGEST, BLOCK=BLOCK, num_warps=4
    )
    draft = torch.empty(rows, drafted, dtype=torch.int32, device=text.device)
    rates = torch.empty(rows, dtype=torch.int32, device=text.device)
    _draft_copies[(rows,)](
        text, state.lengths, state.best, counts, state.seen, draft, rates, state.matched,
        state.drafted, text.stride(0), drafted, LENGTHS=state.seen.shape[1], UNIT=RATE_UNIT,
        WIDTH=triton.next_power_of_2(max(most, 1)), num_warps=1,
    )  # fmt: skip
    return draft, rates


@triton.jit
def _search(text, lengths, best, row_stride, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    """The longest match that ends at one of some positions, as its length and its position."""
    row = tl.program_id(0).to(tl.int64)
    last = tl.load(lengths + row) - 1
    first = tl.program_id(1) * BLOCK
    if first < last:
        position = first + tl.arange(0, BLOCK)
        start = text + row * row_stride
        matches, length = position < last, tl.zeros((BLOCK,), tl.int32)
        for back in tl.static_range(LONGEST):
            token = tl.load(start + position - back, matches & (position >= back), other=-1)
            wanted = tl.load(start + last - back, last >= back, other=-2)
            matches = matches & (position >= back) & (token == wanted)
            length += matches.to(tl.int32)
        key = (length.to(tl.int64) << 32) | position.to(tl.int64)
        tl.atomic_max(best + row, tl.max(tl.where(length > 0, key, 0), 0))


@triton.jit(do_not_specialize=["drafted"])
def _draft_copies(
    text, lengths, best, counts, seen, draft, rates, matched, tried, row_stride, drafted,
    LENGTHS: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The tokens behind a match, and how often tokens behind matches of its length are right."""
    row = tl.program_id(0).to(tl.int64)
    key, length = tl.load(best + row), tl.load(lengths + row)
    found = tl.where(tl.load(counts + row) > 0, (key >> 32).to(tl.int32), 0)
    position = (key & 0xFFFFFFFF).to(tl.int32)
    period = tl.maximum(length - 1 - position, 1)
    place = tl.arange(0, WIDTH)
    source = text + row * row_stride + position + 1 + place % period
    token = tl.load(source, (place < drafted) & (found > 0), other=0)
    tl.store(draft + row * drafted + place, token.to(tl.int32), place < drafted)
    right, wrong = tl.load(seen + found), tl.load(seen + LENGTHS + found)
    rate = tl.where(found > 0, right / (right + wrong), 0.0)
    tl.store(rates + row, (rate * UNIT).to(tl.int32))
    tl.store(matched + row, found)
    tl.store(tried + row, tl.where(found > 0, drafted, 0))
