"""Copies found on the device: for every row of a batch the latest longest match of its last tokens.

Nothing waits for the host: tokens just sampled are appended, the text is searched in parallel
parts, and the tokens behind the match become the draft.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 16  # tokens of a match that are compared
BLOCK = 1024  # positions of a program


def append_tokens(text: Tensor, lengths: Tensor, new: Tensor, counts: Tensor) -> None:
    """Write the first counts [B] of the new tokens [B, T] behind rows of text [B, M] with these
    lengths [B]; -1 is no token, and what does not fit is left out."""
    rows, width = new.shape
    _append_tokens[(rows,)](
        text, lengths, new, counts, text.stride(0), text.shape[1], new.stride(0), width,
        BLOCK=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip


@triton.jit
def _append_tokens(text, lengths, new, counts, text_row, most, new_row, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    token = tl.load(new + row * new_row + place, place < width, other=-1)
    target = tl.load(lengths + row) + place
    wanted = (place < tl.load(counts + row)) & (token >= 0) & (target < most)
    tl.store(text + row * text_row + target, token.to(text.dtype.element_ty), wanted)


def find_copies(text: Tensor, lengths: Tensor, drafted: int) -> tuple[Tensor, Tensor]:
    """Drafts [B, drafted] of rows of text [B, M] with these lengths [B], and the tokens [B] that
    match before them, at most LONGEST; without a match tokens are 0.

    Of several longest matches the last counts. A draft that reaches the end of the text goes on
    from its own beginning.
    """
    rows, most = text.shape
    best = torch.zeros(rows, dtype=torch.int64, device=text.device)
    _search[(rows, triton.cdiv(most, BLOCK))](
        text, lengths, best, text.stride(0), LONGEST=LONGEST, BLOCK=BLOCK, num_warps=4
    )
    draft = torch.empty(rows, drafted, dtype=torch.int32, device=text.device)
    matched = torch.empty(rows, dtype=torch.int32, device=text.device)
    _copy[(rows,)](
        text, lengths, best, draft, matched, text.stride(0), drafted,
        BLOCK=triton.next_power_of_2(drafted), num_warps=1,
    )  # fmt: skip
    return draft, matched


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


@triton.jit
def _copy(text, lengths, best, draft, matched, row_stride, drafted, BLOCK: tl.constexpr):
    """The tokens behind a match."""
    row = tl.program_id(0).to(tl.int64)
    key, length = tl.load(best + row), tl.load(lengths + row)
    found = (key >> 32).to(tl.int32)
    position = (key & 0xFFFFFFFF).to(tl.int32)
    period = tl.maximum(length - 1 - position, 1)
    place = tl.arange(0, BLOCK)
    source = text + row * row_stride + position + 1 + place % period
    token = tl.load(source, (place < drafted) & (found > 0), other=0)
    tl.store(draft + row * drafted + place, token, place < drafted)
    tl.store(matched + row, found)
