"""Mixtures of experts: the choice of experts, and products that read the chosen ones alone.

A pair is a row and one of its experts. Up to TILE pairs of an expert are multiplied by one program,
which finds them among all pairs by itself: no sort, no tables, nothing on the host. Sums have the
order of `product_triton`, whatever the other pairs are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import overlapped, wait

TILE = 16  # pairs of a program: what a matrix instruction takes at least
MAX_PAIRS = 1024  # all pairs of a step are held by one program
DEPTH = 128  # inputs of a block


def choose_experts(
    logits: Tensor, chosen: int, *, among_chosen: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weights [N, k] and numbers [N, k] of the experts with the highest logits [N, E], in falling
    order. Weights are the softmax over all experts, or `among_chosen`."""
    nodes, experts = logits.shape
    assert logits.is_contiguous(), "rows must be contiguous"
    weights = logits.new_empty(nodes, chosen, dtype=dtype)
    numbers = logits.new_empty(nodes, chosen, dtype=torch.int64)
    _choose_experts[(nodes,)](
        logits, weights, numbers, experts, CHOSEN=chosen, AMONG_CHOSEN=among_chosen,
        BLOCK=triton.next_power_of_2(experts), SLOTS=triton.next_power_of_2(chosen), num_warps=1,
        **overlapped(logits.device),
    )  # fmt: skip
    return weights, numbers


@triton.jit
def _choose_experts(
    logits, weights, numbers, experts, CHOSEN: tl.constexpr, AMONG_CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The experts of one node, the best first; of equals the first."""
    wait(PDL)
    node = tl.program_id(0).to(tl.int64)
    expert, slot = tl.arange(0, BLOCK), tl.arange(0, SLOTS)
    x = tl.load(logits + node * experts + expert, expert < experts, other=float("-inf"))
    x = x.to(tl.float32)
    largest = tl.max(x, 0)
    total = tl.sum(tl.exp(x - largest), 0)
    found = tl.zeros((SLOTS,), tl.int32)
    best = tl.full((SLOTS,), float("-inf"), tl.float32)
    for place in tl.static_range(CHOSEN):
        value = tl.max(x, 0)
        first = tl.min(tl.where(x == value, expert, BLOCK), 0)
        found = tl.where(slot == place, first, found)
        best = tl.where(slot == place, value, best)
        x = tl.where(expert == first, float("-inf"), x)
    weight = tl.exp(best - largest)
    if AMONG_CHOSEN:
        total = tl.sum(weight, 0)
    tl.store(weights + node * CHOSEN + slot, weight / total, slot < CHOSEN)
    # What is no number compares with nothing: such a node is padding.
    found = tl.minimum(found, experts - 1)
    tl.store(numbers + node * CHOSEN + slot, found.to(tl.int64), slot < CHOSEN)


def weighted_sum(pairs: Tensor, weights: Tensor) -> Tensor:
    """[N, O]: the sum of each node's pairs [N * k, O], times their weights [N, k]."""
    (nodes, chosen), outputs = weights.shape, pairs.shape[1]
    assert pairs.is_contiguous(), "rows must be contiguous"
    assert weights.is_contiguous(), "rows must be contiguous"
    result = pairs.new_empty(nodes, outputs)
    block = min(triton.next_power_of_2(outputs), 512)
    _weighted_sum[(nodes, triton.cdiv(outputs, block))](
        pairs, weights, result, outputs, CHOSEN=chosen, BLOCK=block, **overlapped(pairs.device)
    )
    return result


@triton.jit
def _weighted_sum(
    pairs, weights, result, outputs, CHOSEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    wait(PDL)
    node = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < outputs
    total = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(CHOSEN):
        pair = node * CHOSEN + place
        weight = tl.load(weights + pair).to(tl.float32)
        total += weight * tl.load(pairs + pair * outputs + column, inside, other=0.0).to(tl.float32)
    tl.store(result + node * outputs + column, total, inside)


def expert_product(
    x: Tensor, experts: Tensor, rows: Tensor, weights: Tensor, *, transposed: bool = False
) -> Tensor:
    """[S, O]: pair s is the product of a row of x with the matrix of its expert.

    `experts` [N, k] are those of node n; x has a row for each pair, or for each node. `weights` are
    [E, O, I], or [E, I, O] if `transposed`. A node with a negative row [N] is padding: its pairs
    read no weights and their results are undefined.
    """
    nodes, chosen = experts.shape
    pairs = nodes * chosen
    assert pairs <= MAX_PAIRS, f"at most {MAX_PAIRS} pairs at once"
    assert len(x) in (nodes, pairs), "a row for each pair, or for each node"
    assert x.is_contiguous(), "rows must be contiguous"
    outputs, inputs = weights.shape[1:] if not transposed else weights.shape[:0:-1]
    by_output, by_input = weights.stride()[1:] if not transposed else weights.stride()[:0:-1]
    width = 64 if transposed else 32 if pairs <= TILE else 64
    product = x.new_empty(pairs, outputs)
    _expert_product[(triton.cdiv(outputs, width), pairs)](
        x, experts.contiguous(), rows, weights, product, outputs, weights.stride(0), by_output,
        by_input, pairs, CHOSEN=chosen, EACH=1 if len(x) == pairs else chosen, INPUTS=inputs,
        PAIRS=max(TILE, triton.next_power_of_2(pairs)), TILE=TILE, WIDTH=width, DEPTH=DEPTH,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=4, num_stages=4,
        **overlapped(x.device),
    )  # fmt: skip
    return product


@triton.jit(do_not_specialize=["pairs"], do_not_specialize_on_alignment=["rows"])
def _expert_product(
    x, experts, rows, weights, product, outputs, by_expert, by_output, by_input, pairs,
    CHOSEN: tl.constexpr, EACH: tl.constexpr, INPUTS: tl.constexpr, PAIRS: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Some outputs of the pairs of one expert, from the pair of this program on: it is the first,
    the TILE-th, ... of its expert, or the program has nothing to do."""
    wait(PDL)
    mine = tl.program_id(1)
    pair = tl.arange(0, PAIRS)
    row = tl.load(rows + pair // CHOSEN, pair < pairs, other=-1)
    expert = tl.load(experts + pair, (pair < pairs) & (row >= 0), other=-1).to(tl.int32)
    own = tl.sum(tl.where(pair == mine, expert, 0), 0)
    together = (expert == own) & (own >= 0)
    rank = tl.cumsum(together.to(tl.int32), 0) - 1
    first = tl.sum(tl.where(pair == mine, rank, 0), 0)
    if (own >= 0) & (first % TILE == 0):
        slot = first + tl.arange(0, TILE)
        hit = (rank[None, :] == slot[:, None]) & together[None, :]
        found = tl.sum(tl.where(hit, pair[None, :] + 1, 0), 1) - 1  # -1: fewer pairs than slots
        exists = (found >= 0)[:, None]
        column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
        depth = tl.arange(0, DEPTH)
        source = x + (found // EACH).to(tl.int64)[:, None] * INPUTS + depth[None, :]
        place = weights + own.to(tl.int64) * by_expert
        place += column.to(tl.int64)[None, :] * by_output + depth.to(tl.int64)[:, None] * by_input
        written = (column < outputs)[None, :]
        total = tl.zeros((TILE, WIDTH), tl.float32)
        for start in range(0, INPUTS, DEPTH):
            inside = depth < INPUTS - start
            part = tl.load(source + start, exists & inside[None, :], other=0.0)
            weight = tl.load(place + start * by_input, written & inside[:, None], other=0.0)
            total = tl.dot(part, weight, total, input_precision=PRECISION)
        target = product + found.to(tl.int64)[:, None] * outputs + column[None, :]
        tl.store(target, total, exists & written)
