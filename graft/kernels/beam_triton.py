"""One level of a beam search in Triton: the best children of all nodes, and which are expanded.

torch needs some twenty launches for it, of which a top-k alone takes as long as the draft head's
layer. Here each program finds the best of a part of a row of logits, and one program per sequence
selects among those and writes the inputs of the next level. Value and index of a candidate are one
integer, so ties are resolved by index and nothing is selected twice.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.decoder_triton import candidate, place_of

PART = 2048  # logits that one program compares
LOWEST = tl.constexpr(-0x8000000000000000)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The W nodes of a level of B sequences, all [B * W] int64 but `scores`, float32."""

    tokens: Tensor
    above: Tensor  # index of the parent in the level before
    numbers: Tensor  # in the tree
    bits: Tensor  # visible rows of the draft tree, their own included
    rows: Tensor  # in the cache
    positions: Tensor
    scores: Tensor  # log probabilities of their paths

    @classmethod
    def empty(cls, count: int, device: torch.device) -> "Nodes":
        """Uninitialised nodes."""
        whole = torch.empty(6, count, dtype=torch.int64, device=device)
        scores = torch.empty(count, dtype=torch.float32, device=device)
        return cls(*whole, scores)  # type: ignore[call-arg]

    @classmethod
    def roots(cls, positions: Tensor) -> "Nodes":
        """Roots at these positions [B]; they see no drafted rows, and their own exist already."""
        nothing = torch.zeros_like(positions)
        scores = torch.zeros(len(positions), dtype=torch.float32, device=positions.device)
        return cls(nothing, nothing, nothing, nothing, nothing - 1, positions, scores)


@dataclass(frozen=True, slots=True)
class Step:
    """Sizes of a level for `advance`."""

    children: int  # of each node
    size: int  # nodes to expand
    first: int  # the number of the level's first child in the tree
    above: int  # drafted rows before those of the next level
    keeps_all: bool  # children that are not expanded stay in the tree


def best_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each part of rows [N, n]: keys [N, P, count] for `advance`, and the
    parts' maxima and sums of exponentials [N, P, 2]."""
    rows, size = logits.shape
    assert logits.is_contiguous(), "rows must be contiguous"
    parts = triton.cdiv(size, PART)
    keys = torch.empty(rows, parts, count, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, parts, 2, dtype=torch.float32, device=logits.device)
    _best_children[(rows, parts)](logits, keys, sums, size, COUNT=count, PART=PART, num_warps=8)
    return keys, sums


@triton.jit
def _value(key):
    """The x of a candidate."""
    bits = (key >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _best_children(logits, keys, sums, size, COUNT: tl.constexpr, PART: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * PART + tl.arange(0, PART)
    inside = column < size
    x = tl.load(logits + row * size + column, inside, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    place = row * tl.num_programs(1) + part
    tl.store(sums + 2 * place, peak)
    tl.store(sums + 2 * place + 1, tl.sum(tl.where(inside, tl.exp(x - peak), 0.0), 0))
    key = tl.where(inside, candidate(x, column), LOWEST)
    for number in range(COUNT):
        best = tl.max(key, 0)
        tl.store(keys + place * COUNT + number, best)
        key = tl.where(key == best, LOWEST, key)


def advance(
    nodes: Nodes,
    found: tuple[Tensor, Tensor],
    step: Step,
    tokens: Tensor,
    tree_rows: Tensor,
    pool: Tensor,
) -> Nodes:
    """The nodes to expand after a level, given `best_children` of its logits.

    `tokens` [n] are the ids of the logits, `tree_rows` [B] the first rows for drafted nodes;
    `pool` [3, B, P] int32 gets the tokens, the parents and the log probabilities (their bits) of
    the tree's nodes, node 1 first.
    """
    keys, sums = found
    batch = pool.shape[1]
    width = len(nodes.tokens) // batch
    following = Nodes.empty(batch * step.size, keys.device)
    if step.keeps_all:
        found_here = pool[:, :, step.first - 1 :]
    else:  # children that are not expanded are dropped
        found_here = pool.new_empty(3, batch, width * step.children)
    inputs = (nodes.numbers, nodes.bits, nodes.positions, nodes.scores)
    outputs = (
        following.tokens, following.above, following.numbers, following.bits, following.rows,
        following.positions, following.scores,
    )  # fmt: skip
    _advance[(batch,)](
        keys, sums, *inputs, tokens, tree_rows, *outputs, found_here, *found_here.stride()[:2],
        pool, *pool.stride()[:2], step.first, step.above,
        WIDTH=width, PARTS=keys.shape[1], CHILDREN=step.children,
        SIZE=step.size, KEEPS_ALL=step.keeps_all, ROWS=triton.next_power_of_2(width),
        CANDIDATES=triton.next_power_of_2(keys.shape[1] * step.children),
        CHILDREN_PADDED=triton.next_power_of_2(step.children),
        PARTS_PADDED=triton.next_power_of_2(keys.shape[1]),
        SIZE_PADDED=triton.next_power_of_2(step.size), num_warps=4,
    )  # fmt: skip
    return following


# Another first row or batch size does not recompile.
@triton.jit(
    do_not_specialize=[
        "first", "above_rows", "found_field", "found_sequence", "pool_field", "pool_sequence"
    ],
    do_not_specialize_on_alignment=[
        "numbers", "bits", "positions", "scores", "next_tokens", "next_above", "next_numbers",
        "next_bits", "next_rows", "next_positions", "next_scores", "found",
    ],
)  # fmt: skip
def _advance(
    keys, sums, numbers, bits, positions, scores, tokens, tree_rows,
    next_tokens, next_above, next_numbers, next_bits, next_rows, next_positions, next_scores,
    found, found_field, found_sequence, pool, pool_field, pool_sequence, first, above_rows,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, CHILDREN: tl.constexpr, SIZE: tl.constexpr,
    KEEPS_ALL: tl.constexpr, ROWS: tl.constexpr, CANDIDATES: tl.constexpr,
    CHILDREN_PADDED: tl.constexpr, PARTS_PADDED: tl.constexpr, SIZE_PADDED: tl.constexpr,
):  # fmt: skip
    """One sequence."""
    batch = tl.program_id(0).to(tl.int64)
    row, child = tl.arange(0, ROWS), tl.arange(0, CHILDREN_PADDED)
    is_row = row < WIDTH
    node = batch * WIDTH + row
    part = tl.arange(0, PARTS_PADDED)
    place = (node[:, None] * PARTS + part[None, :]) * 2
    is_part = is_row[:, None] & (part < PARTS)[None, :]
    peaks = tl.load(sums + place, is_part, other=float("-inf"))
    masses = tl.load(sums + place + 1, is_part, other=0.0)
    peak = tl.where(is_row, tl.max(peaks, 1), 0.0)
    mass = tl.sum(tl.where(is_part, masses * tl.exp(peaks - peak[:, None]), 0.0), 1)
    total = peak + tl.log(tl.where(is_row, mass, 1.0))
    column = tl.arange(0, CANDIDATES)
    key = tl.load(
        keys + node[:, None] * (PARTS * CHILDREN) + column[None, :],
        is_row[:, None] & (column < PARTS * CHILDREN)[None, :],
        other=LOWEST,
    )
    logs = tl.full((ROWS, CHILDREN_PADDED), float("-inf"), tl.float32)
    ids = tl.zeros((ROWS, CHILDREN_PADDED), tl.int64)
    for number in range(CHILDREN):
        best = tl.max(key, 1)
        key = tl.where(key == best[:, None], LOWEST, key)
        exists = is_row & (best != LOWEST)
        token = tl.load(tokens + place_of(best), exists, other=0)
        log = tl.where(exists, _value(best) - total, float("-inf"))
        here = (child == number)[None, :]
        logs = tl.where(here, log[:, None], logs)
        ids = tl.where(here, token[:, None], ids)
    name = tl.load(numbers + node, is_row, other=0)
    score = tl.load(scores + node, is_row, other=float("-inf"))
    found += batch * found_sequence
    flat = row[:, None] * CHILDREN + child[None, :]
    is_child = is_row[:, None] & (child < CHILDREN)[None, :]
    parents = tl.broadcast_to(name[:, None], (ROWS, CHILDREN_PADDED))
    tl.store(found + flat, ids.to(tl.int32), is_child)
    tl.store(found + found_field + flat, parents.to(tl.int32), is_child)
    tl.store(found + 2 * found_field + flat, logs.to(tl.int32, bitcast=True), is_child)
    key = tl.where(is_child, candidate(score[:, None] + logs, flat), LOWEST)
    going = tl.arange(0, SIZE_PADDED)
    bests = tl.full((SIZE_PADDED,), LOWEST, tl.int64)
    for number in range(SIZE):
        best = tl.max(tl.max(key, 1), 0)
        key = tl.where(key == best, LOWEST, key)
        bests = tl.where(going == number, best, bests)
    tl.debug_barrier()  # `found` is read back
    goes = going < SIZE
    chosen = tl.where(goes, place_of(bests), 0)
    parent = batch * WIDTH + chosen // CHILDREN
    to = batch * SIZE + going
    token = tl.load(found + chosen, goes, other=0)
    tl.store(next_tokens + to, token.to(tl.int64), goes)
    tl.store(next_above + to, parent, goes)
    tl.store(next_scores + to, _value(bests), goes)
    own = tl.full((SIZE_PADDED,), 1, tl.int64) << (above_rows + going)
    tl.store(next_bits + to, tl.load(bits + parent, goes, other=0) | own, goes)
    tl.store(next_rows + to, tl.load(tree_rows + batch) + above_rows + going, goes)
    position = tl.load(positions + parent, goes, other=0) + 1
    tl.store(next_positions + to, position, goes)
    if KEEPS_ALL:
        tl.store(next_numbers + to, first + chosen, goes)
    else:
        tl.store(next_numbers + to, (first + going).to(tl.int64), goes)
        pool += batch * pool_sequence + first - 1 + going
        tl.store(pool, token, goes)
        for field in range(1, 3):
            value = tl.load(found + field * found_field + chosen, goes, other=0)
            tl.store(pool + field * pool_field, value, goes)


def joined_pairs(left: Tensor, right: Tensor, places: Tensor) -> Tensor:
    """[N, 2E]: rows of left [N, E] concatenated with the rows `places` [N] of right [M, E]."""
    rows, size = left.shape
    assert left.is_contiguous(), "rows must be contiguous"
    assert right.is_contiguous(), "rows must be contiguous"
    pairs = left.new_empty(rows, 2 * size)
    block = min(triton.next_power_of_2(size), 1024)
    _joined_pairs[(rows, triton.cdiv(size, block))](
        left, right, places, pairs, size, BLOCK=block, num_warps=4
    )
    return pairs


@triton.jit(do_not_specialize_on_alignment=["places"])
def _joined_pairs(left, right, places, pairs, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    other = tl.load(places + row).to(tl.int64)
    tl.store(pairs + 2 * row * size + column, tl.load(left + row * size + column, inside), inside)
    values = tl.load(right + other * size + column, inside)
    tl.store(pairs + (2 * row + 1) * size + column, values, inside)
