"""Products of rows with the matrices of their experts: only the experts that a step chose are read.

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
