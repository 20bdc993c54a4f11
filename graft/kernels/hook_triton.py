"""What transformers' modules do around attention, as one launch each, for captured steps.

As in `decoder_triton`, everything that changes between steps is read from the device. A node with a
negative row is padding: nothing of it is stored.
"""

import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import overlapped, wait

NODES = 16  # of a program: one node has too little to load


def rotate_both(
    query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, rotated: int
) -> tuple[Tensor, Tensor]:
    """Rotated query [1, H, N, D] and key [1, K, N, D], in one memory with the nodes first.

    The first `rotated` components of a head turn in pairs that lie half of them apart, by the
    angles whose cosine and sine are the first columns of [1, N, C]. The others stay.
    """
    _, heads, nodes, size = query.shape
    kv_heads = key.shape[1]
    turned = query.new_empty(nodes, heads + kv_heads, size)
    strides = (query.stride(2), query.stride(1), key.stride(2), key.stride(1))
    assert query.stride(3) == key.stride(3) == 1, "a head must be contiguous"
    assert cosine.stride() == sine.stride(), "cosine and sine must have the same layout"
    _rotate_both[(triton.cdiv(nodes, NODES), heads + kv_heads)](
        query, key, cosine, sine, turned, nodes, *strides, *cosine.stride()[1:],
        HEADS=heads, BOTH=heads + kv_heads, SIZE=size, HALF=rotated // 2,
        BLOCK=triton.next_power_of_2(size), NODES=NODES, **overlapped(query.device),
    )  # fmt: skip
    both = turned[None].transpose(1, 2)
    return both[:, :heads], both[:, heads:]


@triton.jit(do_not_specialize=["nodes"])
def _rotate_both(
    query, key, cosine, sine, turned, nodes,
    query_node, query_head, key_node, key_head, angle_node, angle_column,
    HEADS: tl.constexpr, BOTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, NODES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of some nodes: of the queries, then of the keys."""
    head = tl.program_id(1).to(tl.int64)
    node = (tl.program_id(0) * NODES + tl.arange(0, NODES)).to(tl.int64)[:, None]
    wait(PDL)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (node < nodes) & (column < SIZE)
    if head < HEADS:
        source = query + node * query_node + head * query_head
    else:
        source = key + node * key_node + (head - HEADS) * key_head
    x = tl.load(source + column, inside, other=0.0).to(tl.float32)
    turns = inside & (column < 2 * HALF)
    is_first = column < HALF
    other = tl.load(source + tl.where(is_first, column + HALF, column - HALF), turns, other=0.0)
    angle = node * angle_node + tl.where(is_first, column, column - HALF) * angle_column
    turn = tl.load(cosine + angle, turns, other=1.0).to(tl.float32)
    lift = tl.load(sine + angle, turns, other=0.0).to(tl.float32)
    y = x * turn + tl.where(is_first, -lift, lift) * other.to(tl.float32)
    tl.store(turned + (node * BOTH + head) * SIZE + column, y, inside)


def norm_heads(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """The RMS norm of every head of x [N, H, D] times gain [D]. Heads lie next to each other; the
    nodes may be parts of longer rows."""
    nodes, heads, size = x.shape
    assert x.stride()[1:] == (size, 1), "heads must lie next to each other"
    normed = x.new_empty(nodes, heads, size)
    block = triton.next_power_of_2(size)
    _norm_heads[(nodes * heads,)](
        x, gain, normed, x.stride(0), epsilon, HEADS=heads, SIZE=size, BLOCK=block,
        num_warps=min(max(block // 256, 1), 16), **overlapped(x.device),
    )  # fmt: skip
    return normed


@triton.jit
def _norm_heads(
    x, gain, normed, node_stride, epsilon,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of a node; summed as in `decoder_triton`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    factor = tl.load(gain + column, inside, other=0.0).to(tl.float32)
    wait(PDL)
    place = (row // HEADS) * node_stride + (row % HEADS) * SIZE
    wide = tl.load(x + place + column, inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    tl.store(normed + row * SIZE + column, wide * scale * factor, inside)


def store_rows(key: Tensor, value: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write key [1, K, N, D] and value [1, K, N, V] to the rows [N] of keys and values
    [K, rows, S], of which they fill the first components."""
    _, kv_heads, nodes, size = key.shape
    assert keys.stride() == values.stride(), "keys and values must have the same layout"
    assert key.stride(3) == value.stride(3) == keys.stride(2) == 1, "a key must be contiguous"
    strides = (key.stride(2), key.stride(1), value.stride(2), value.stride(1))
    block = triton.next_power_of_2(max(size, value.shape[3]))
    _store_rows[(triton.cdiv(nodes, NODES), 2 * kv_heads)](
        key, value, rows, keys, values, nodes, *strides, keys.stride(0), keys.stride(1),
        KV_HEADS=kv_heads, SIZE=size, VALUE_SIZE=value.shape[3], BLOCK=block, NODES=NODES,
        **overlapped(key.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["nodes"], do_not_specialize_on_alignment=["rows"])
def _store_rows(
    key, value, rows, keys, values, nodes,
    key_node, key_head, value_node, value_head, head_stride, row_stride,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK: tl.constexpr,
    NODES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of some nodes: of the keys, then of the values."""
    head = tl.program_id(1).to(tl.int64)
    node = (tl.program_id(0) * NODES + tl.arange(0, NODES)).to(tl.int64)[:, None]
    wait(PDL)
    column = tl.arange(0, BLOCK)[None, :]
    row = tl.load(rows + node, node < nodes, other=-1).to(tl.int64)
    if head < KV_HEADS:
        exists = (row >= 0) & (column < SIZE)
        x = tl.load(key + node * key_node + head * key_head + column, exists)
        tl.store(keys + head * head_stride + row * row_stride + column, x, exists)
    else:
        head -= KV_HEADS
        exists = (row >= 0) & (column < VALUE_SIZE)
        x = tl.load(value + node * value_node + head * value_head + column, exists)
        tl.store(values + head * head_stride + row * row_stride + column, x, exists)
