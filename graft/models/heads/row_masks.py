"""Which columns of packed rows attend to which, when a head is trained.

A row holds several documents; a column attends to columns of its own document that lie a certain
distance back. On a GPU a mask is block-sparse, for FlexAttention: its memory grows linearly with
the row, apart from one entry for every 128 x 128 pairs. Elsewhere it is a dense bool tensor, which
is also the definition (FlexAttention has a backward pass on CUDA alone).
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Mask = Tensor | BlockMask  # dense: [B, T, S] bool
Band = tuple[int, int]  # keys so many columns back: from the first number to below the second
FAR = 1 << 30
BLOCK = 128  # columns; rows of a sparse mask are a multiple of it


def row_mask(documents: Tensor, *bands: Band) -> Mask:
    """The mask of keys [B, n * T]: one copy of the row's columns for each of the n bands.

    `documents` [B, T] are ascending numbers within a row, padding included.
    """
    limits = torch.tensor(bands, device=documents.device)
    return (sparse_mask if documents.is_cuda else dense_mask)(documents, limits)


def window_mask(documents: Tensor, window: int) -> Mask:
    """A column and those before it, `window` altogether."""
    return row_mask(documents, (0, window))


def shift_mask(documents: Tensor, shift: int) -> Mask:
    """Columns at least `shift` back."""
    return row_mask(documents, (shift, FAR))


def chain_masks(documents: Tensor, steps: int) -> list[Mask]:
    """For each step of a chain, its mask over the keys of all steps up to it: those of the first
    step that lie at least the earlier steps' number of columns back, then one of each step."""
    return [
        row_mask(documents, (last, FAR), *((last - j, last - j + 1) for j in range(1, last + 1)))
        for last in range(steps)
    ]


def dense_mask(documents: Tensor, limits: Tensor) -> Tensor:
    """[B, T, n * T] bool for bands [n, 2]."""
    columns = torch.arange(documents.shape[1], device=documents.device)
    back = columns[:, None] - columns  # how far a key lies behind a query
    same = documents[:, :, None] == documents[:, None]
    return torch.cat([same & (back >= near) & (back < far) for near, far in limits], -1)


def sparse_mask(documents: Tensor, limits: Tensor, block: int = BLOCK) -> BlockMask:
    """The same in blocks; no step waits for the device."""
    rows, length = documents.shape
    assert length % block == 0, f"rows must be a multiple of {block} columns"

    def visible(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        band, column = key // length, key % length
        back = query - column
        inside = (back >= limits[band, 0]) & (back < limits[band, 1])
        return inside & (documents[row, query] == documents[row, column])

    numbers = documents.view(rows, -1, block)
    first, last = numbers[..., 0], numbers[..., -1]  # [B, blocks] documents of each block
    places = torch.arange(length // block, device=documents.device)
    back = block * (places[:, None] - places)  # of the blocks' first columns
    near, far = limits[:, 0, None, None], limits[:, 1, None, None]
    some = (back + block - 1 >= near) & (back - block + 1 < far)  # [n, blocks, blocks]
    every = (back - block + 1 >= near) & (back + block - 1 < far)
    shared = (last[:, None] >= first[..., None]) & (first[:, None] <= last[..., None])
    single = (first[:, None] == last[..., None]) & (last[:, None] == first[..., None])
    whole = _beside(every, single)
    partial = _beside(some, shared) & ~whole
    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(whole), BLOCK_SIZE=block, mask_mod=visible,
        seq_lengths=(length, len(limits) * length),
    )  # fmt: skip


def masked_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Mask | None, scale: float | None = None
) -> Tensor:
    """[B, H, T, D] of queries [B, H, T, D], keys and values [B, K, S, D]; zeros for a row that
    sees nothing. Without a mask every column attends to itself and those before it."""
    if isinstance(mask, BlockMask):
        attend = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
        return attend(queries, keys, values, block_mask=mask, scale=scale, enable_gqa=True)
    if mask is None:
        return F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
    sees = mask.any(-1)
    mask = mask | ~sees[..., None]  # else softmax over nothing
    attended = F.scaled_dot_product_attention(
        queries, keys, values, mask[:, None], scale=scale, enable_gqa=True
    )
    return attended * sees[:, None, :, None]


def _beside(bands: Tensor, documents: Tensor) -> Tensor:
    """[B, blocks, n * blocks] of [n, blocks, blocks] and [B, blocks, blocks]."""
    return (bands[None] & documents[:, None]).transpose(1, 2).flatten(2)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """FlexAttention's form: how many blocks each row of blocks has, and their numbers first."""
    order = blocks.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)
