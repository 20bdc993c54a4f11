"""The operations between the products of a decoder layer in Triton, each fused to one launch.

A decoding step on a GPU mostly reads weights, so a launch between two products costs more than its
computation. All kernels can be captured in a CUDA graph: sizes come from shapes, and everything
that changes between steps is read from the device. They compute in float32 and round once, where
torch rounds after every operation.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import overlapped, wait

MAX_MOVES = 64  # rows that one program of `move_rows` holds in registers
NODES = 16  # of a program that rotates: one node has too little to load
ARGMAX_BLOCK = 4096  # elements of a row per program of `argmax_rows`


def add_norm(hidden: Tensor, change: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """hidden [N, E] += change in place, then its RMS norm times weight [E].

    The change is [N, E], or [S, N, E] float32 of S parts: their sum is rounded before it is added.
    """
    rows, size = hidden.shape
    assert hidden.is_contiguous(), "rows must be contiguous"
    parts = 0
    if change is not None:
        parts = len(change) if change.dim() > hidden.dim() else 1
        assert change.shape[-2:] == hidden.shape, "one change per element"
        assert change.is_contiguous(), "rows must be contiguous"
    normed = torch.empty_like(hidden)
    block = triton.next_power_of_2(size)
    _add_norm[(rows,)](
        hidden, hidden if change is None else change, weight, normed, rows, size, epsilon,
        PARTS=parts, BLOCK=block, num_warps=min(max(block // 256, 1), 16),
        **overlapped(hidden.device),
    )  # fmt: skip
    return normed


@triton.jit(do_not_specialize=["rows"])
def _add_norm(
    hidden, change, weight, normed, rows, size, epsilon,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    gain = tl.load(weight + column, inside, other=0.0).to(tl.float32)
    wait(PDL)
    x = tl.load(hidden + start + column, inside, other=0.0)
    if PARTS > 0:
        added = tl.load(change + start + column, inside, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            step = part * rows.to(tl.int64) * size
            added += tl.load(change + step + start + column, inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) + added.to(x.dtype).to(tl.float32)).to(x.dtype)
        tl.store(hidden + start + column, x, inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)
    tl.store(normed + start + column, wide * scale * gain, inside)


def rotate_and_store(
    qkv: Tensor,
    positions: Tensor,
    cosine: Tensor,
    sine: Tensor,
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    head_norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
) -> Tensor:
    """Rotated queries [N, H, D] of qkv [N, (H + 2K) * D]; keys and values go into the cache.

    The cache is one layer's [K, rows, D]; cosine and sine [positions, D / 2] are float32. A node
    with a negative row is padding: nothing is stored, but its position must be in the tables.
    head_norms are Qwen3's of queries and keys, [D] each.
    """
    kv_heads, _, size = keys.shape
    heads = qkv.shape[1] // size - 2 * kv_heads
    assert all(x.is_contiguous() for x in (qkv, cosine, sine)), "rows must be contiguous"
    assert keys.stride() == values.stride(), "keys and values must have the same layout"
    assert keys.stride(2) == 1, "a key must be contiguous"
    query = qkv.new_empty(len(qkv), heads, size)
    _rotate_and_store[(triton.cdiv(len(qkv), NODES), heads + 2 * kv_heads)](
        qkv, positions, cosine, sine, rows, query, keys, values, *(head_norms or (qkv, qkv)),
        len(qkv), keys.stride(0), keys.stride(1), epsilon,
        HEADS=heads, KV_HEADS=kv_heads, HALF=size // 2, NORMED=head_norms is not None,
        BLOCK=triton.next_power_of_2(size // 2), NODES=NODES, **overlapped(qkv.device),
    )  # fmt: skip
    return query


def rotate(queries: Tensor, positions: Tensor, cosine: Tensor, sine: Tensor, size: int) -> Tensor:
    """Rotated queries [N, H, D = size] of [N, H * D]; see `rotate_and_store`."""
    assert all(x.is_contiguous() for x in (queries, cosine, sine)), "rows must be contiguous"
    heads = queries.shape[1] // size
    rotated = queries.new_empty(len(queries), heads, size)
    unused = (queries,) * 4
    _rotate_and_store[(triton.cdiv(len(queries), NODES), heads)](
        queries, positions, cosine, sine, positions, rotated, *unused, len(queries), 0, 0, 0.0,
        HEADS=heads, KV_HEADS=0, HALF=size // 2, NORMED=False,
        BLOCK=triton.next_power_of_2(size // 2), NODES=NODES, **overlapped(queries.device),
    )  # fmt: skip
    return rotated


@triton.jit(
    do_not_specialize=["nodes"],
    do_not_specialize_on_alignment=["positions", "rows"],  # parts of a step's buffer
)
def _rotate_and_store(
    qkv, positions, cosine, sine, rows, query, keys, values, query_norm, key_norm,
    nodes, head_stride, row_stride, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, NORMED: tl.constexpr,
    BLOCK: tl.constexpr, NODES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of some nodes: of the queries, then of the keys, then of the values."""
    head = tl.program_id(1).to(tl.int64)
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    wait(PDL)
    exists, node = node < nodes, node.to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = exists[:, None] & (column < HALF)
    source = qkv + (node * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF) + column
    first = tl.load(source, inside, other=0.0)
    second = tl.load(source + HALF, inside, other=0.0)
    row = tl.load(rows + node, exists[:, None], other=-1).to(tl.int64)
    stored = inside & (row >= 0)
    if head >= HEADS + KV_HEADS:
        place = values + (head - HEADS - KV_HEADS) * head_stride + row * row_stride + column
        tl.store(place, first, stored)
        tl.store(place + HALF, second, stored)
    else:
        a, b = first.to(tl.float32), second.to(tl.float32)
        if NORMED:
            scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + epsilon)[:, None]
            gain = query_norm if head < HEADS else key_norm
            a *= tl.load(gain + column, inside, other=0.0).to(tl.float32) * scale
            b *= tl.load(gain + HALF + column, inside, other=0.0).to(tl.float32) * scale
        position = tl.load(positions + node, exists[:, None], other=0).to(tl.int64)
        angle = position * HALF + column
        turn, lift = tl.load(cosine + angle, inside), tl.load(sine + angle, inside)
        if head < HEADS:
            place = query + (node * HEADS + head) * (2 * HALF) + column
            stored = inside
        else:
            place = keys + (head - HEADS) * head_stride + row * row_stride + column
        tl.store(place, a * turn - b * lift, stored)
        tl.store(place + HALF, b * turn + a * lift, stored)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [N, F] of both concatenated, [N, 2F]."""
    return _gated(gate_up, gelu=False)


def gated_gelu(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up [N, F] of both concatenated, [N, 2F]; gelu by its tanh approximation."""
    return _gated(gate_up, gelu=True)


def _gated(gate_up: Tensor, *, gelu: bool) -> Tensor:
    rows, size = len(gate_up), gate_up.shape[1] // 2
    assert gate_up.is_contiguous(), "rows must be contiguous"
    gated = gate_up.new_empty(rows, size)
    block = min(triton.next_power_of_2(size), 1024)
    _gate[(rows, triton.cdiv(size, block))](
        gate_up, gated, size, GELU=gelu, BLOCK=block, num_warps=4, **overlapped(gate_up.device)
    )
    return gated


@triton.jit
def _gate(gate_up, gated, size, GELU: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, inside).to(tl.float32)
    inner = gate
    if GELU:  # (1 + tanh(z)) / 2 is the sigmoid of 2z; 2 sqrt(2 / pi) = 1.59...
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    tl.store(gated + row * size + column, gate * tl.sigmoid(inner) * up, inside)


def move_rows(kv: Tensor, moves: Tensor, count: Tensor) -> None:
    """Copy cache rows of kv [2, L, K, rows, D], as if all were read before any is written.

    moves [M, 2] int32 are (source, target), of which the first count [1] are valid; both are read
    from the device.
    """
    _, layers, kv_heads, rows, size = kv.shape
    assert len(moves) <= MAX_MOVES, f"at most {MAX_MOVES} rows can be moved at once"
    assert kv.is_contiguous(), "the cache must be contiguous"
    assert moves.is_contiguous(), "moves must be contiguous"
    _move_rows[(2 * layers * kv_heads,)](
        kv, moves, count, rows, SIZE=size, MOVES=triton.next_power_of_2(len(moves)),
        BLOCK=triton.next_power_of_2(size), num_warps=8,
    )  # fmt: skip


@triton.jit
def _move_rows(
    kv, moves, count, rows, SIZE: tl.constexpr, MOVES: tl.constexpr, BLOCK: tl.constexpr
):
    """The keys or values of one head of one layer: no other program touches them."""
    wanted = tl.load(count)
    if wanted > 0:
        slab = kv + tl.program_id(0).to(tl.int64) * rows * SIZE
        move, column = tl.arange(0, MOVES), tl.arange(0, BLOCK)
        source = tl.load(moves + 2 * move, move < wanted, other=0).to(tl.int64)
        target = tl.load(moves + 2 * move + 1, move < wanted, other=0).to(tl.int64)
        moved = (move < wanted)[:, None] & (column < SIZE)[None, :]
        content = tl.load(slab + source[:, None] * SIZE + column[None, :], moved)
        tl.debug_barrier()
        tl.store(slab + target[:, None] * SIZE + column[None, :], content, moved)


def argmax_rows(logits: Tensor) -> Tensor:
    """Index [N] int64 of the maximum of each row of logits [N, V], ties to the first.

    Several programs share a row, as one alone takes as long as a layer. NaN is the maximum, as in
    torch.
    """
    rows, size = logits.shape
    assert logits.is_contiguous(), "rows must be contiguous"
    parts = triton.cdiv(size, ARGMAX_BLOCK)
    best = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    index = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _best_of_part[(rows, parts)](logits, best, size, BLOCK=ARGMAX_BLOCK, num_warps=8)
    _best_of_row[(rows,)](best, index, parts, BLOCK=triton.next_power_of_2(parts), num_warps=1)
    return index


@triton.jit
def _best_of_part(logits, best, size, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * size + column, column < size, other=float("-inf")).to(tl.float32)
    tl.store(best + row * tl.num_programs(1) + part, tl.max(candidate(x, column), 0))


@triton.jit
def _best_of_row(best, index, parts, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys = tl.load(best + row * parts + part, part < parts, other=-0x8000000000000000)
    tl.store(index + row, place_of(tl.max(keys, 0)))


@triton.jit
def candidate(x, place):
    """Value and index in one integer: ordered by value, then by smaller index. NaN is largest."""
    x = tl.where(x == 0.0, 0.0, x)  # -0 and 0 are equal
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(x != x, 0x7FFFFFFF, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit
def place_of(key):
    """The index of a candidate."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)
