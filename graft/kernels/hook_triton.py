"""What transformers' modules do between products, several operations in a launch, for captured
steps.

As in `decoder_triton`, everything that changes between steps is read from the device. Every
operation rounds its result as if it were launched alone, so what shares a launch changes no bit.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import overlapped, wait

NODES = 16  # of a program that rotates: one node has too little to load


class Norm(NamedTuple):
    """An RMS norm over the last dimension, times gain [D]; without a gain there is no norm."""

    gain: Tensor | None = None
    epsilon: float = 0.0


class Sum(NamedTuple):
    """What one launch computes of a row x: norm(x) * factor + added, and the norm of that."""

    before: Norm = Norm()
    factor: float | None = None
    added: tuple[Tensor, ...] = ()  # two at most, one after the other
    after: Norm = Norm()


def add_and_norm(x: Tensor, way: Sum, total: Tensor | None, normed: Tensor | None) -> None:
    """Of rows x [N, H, D]: the sum into `total` and its norm into `normed`, where they are wanted.

    The rows of x may lie apart, those of all others lie next to each other.
    """
    nodes, heads, size = x.shape
    assert x.stride(2) == 1, "rows must be contiguous"
    before, after = way.before, way.after
    first, second = (*way.added, None, None)[:2]
    block = triton.next_power_of_2(size)
    _add_and_norm[(nodes * heads,)](
        x, before.gain, way.factor, first, second, after.gain, total, normed,
        x.stride(0), x.stride(1), before.epsilon, after.epsilon, HEADS=heads, SIZE=size,
        BLOCK=block, num_warps=min(max(block // 256, 1), 16), **overlapped(x.device),
    )  # fmt: skip


@triton.jit
def _add_and_norm(
    x, before, factor, first, second, after, total, normed,
    node_stride, head_stride, before_epsilon, after_epsilon,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row; weights are read before the kernel in front has ended."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    if before is not None:
        before_gain = tl.load(before + column, inside, other=0.0).to(tl.float32)
    if after is not None:
        after_gain = tl.load(after + column, inside, other=0.0).to(tl.float32)
    wait(PDL)
    source = x + (row // HEADS) * node_stride + (row % HEADS) * head_stride
    place = row * SIZE + column
    y = tl.load(source + column, inside, other=0.0)
    if before is not None:
        y = _normed(y, before_gain, before_epsilon, SIZE)
    if factor is not None:
        y = (y.to(tl.float32) * factor).to(y.dtype)
    if first is not None:
        y = _added(y, tl.load(first + place, inside, other=0.0))
    if second is not None:
        y = _added(y, tl.load(second + place, inside, other=0.0))
    if total is not None:
        tl.store(total + place, y, inside)
    if after is not None:
        tl.store(normed + place, _normed(y, after_gain, after_epsilon, SIZE), inside)


@triton.jit
def _normed(x, gain, epsilon, SIZE: tl.constexpr):
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    return (wide * scale * gain).to(x.dtype)


@triton.jit
def _added(x, y):
    return (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)


class Heads(NamedTuple):
    """Queries or keys x [1, H, N, D], the norm of every head, and where they go when they are
    rotated: [1, H, N, D] with the nodes first in memory."""

    x: Tensor
    norm: Norm = Norm()
    out: Tensor | None = None


class Angles(NamedTuple):
    """The first `rotated` components of a head turn in pairs that lie half of them apart, by the
    angles whose cosine and sine are the first columns of [1, N, C]. The others stay."""

    cosine: Tensor
    sine: Tensor
    rotated: int


class CacheRows(NamedTuple):
    """Where keys and value [1, K, N, V] go: to the rows [N] of keys and values [K, rows, S], of
    which they fill the first components. A node with a negative row is padding, of which nothing
    is stored."""

    value: Tensor
    rows: Tensor
    keys: Tensor
    values: Tensor


def rotate_and_store(
    query: Heads | None, key: Heads, angles: Angles | None, cache: CacheRows | None
) -> None:
    """Queries and keys normed and rotated; keys and values go into the cache, if there is one."""
    _, kv_heads, nodes, size = key.x.shape
    query = query or Heads(key.x[:, :0])
    heads = query.x.shape[1]
    assert query.x.stride(3) == key.x.stride(3) == 1, "a head must be contiguous"
    value, rows, keys, values = cache or (None, None, None, None)
    cosine, sine, rotated = angles or (None, None, 0)
    angle_strides: tuple[int, ...] = (0, 0)
    value_strides = cache_strides = angle_strides
    value_size = size
    if angles:
        angle_strides = angles.cosine.stride()[1:]
        assert angles.sine.stride() == angles.cosine.stride(), "cosine and sine: one layout"
    if cache:
        assert cache.keys.stride() == cache.values.stride(), "keys and values: one layout"
        assert cache.value.stride(3) == cache.keys.stride(2) == 1, "a key must be contiguous"
        value_strides = (cache.value.stride(2), cache.value.stride(1))
        cache_strides = cache.keys.stride()[:2]
        value_size = cache.value.shape[3]
    _rotate_and_store[(triton.cdiv(nodes, NODES), heads + kv_heads * (2 if cache else 1))](
        query.x, key.x, value, cosine, sine, query.norm.gain, key.norm.gain, query.out, key.out,
        rows, keys, values, nodes, query.x.stride(2), query.x.stride(1), key.x.stride(2),
        key.x.stride(1), *value_strides, *angle_strides, *cache_strides, query.norm.epsilon,
        key.norm.epsilon, HEADS=heads, KV_HEADS=kv_heads, SIZE=size, VALUE_SIZE=value_size,
        HALF=rotated // 2, BLOCK=triton.next_power_of_2(max(size, value_size)), NODES=NODES,
        **overlapped(key.x.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["nodes"], do_not_specialize_on_alignment=["rows"])
def _rotate_and_store(
    query, key, value, cosine, sine, query_gain, key_gain, query_out, key_out,
    rows, keys, values, nodes, query_node, query_head, key_node, key_head,
    value_node, value_head, angle_node, angle_column, head_stride, row_stride, query_epsilon,
    key_epsilon, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NODES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One head of some nodes: of the queries, then of the keys, then of the values."""
    head = tl.program_id(1).to(tl.int64)
    node = (tl.program_id(0) * NODES + tl.arange(0, NODES)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (node < nodes) & (column < SIZE)
    wait(PDL)
    if head < HEADS:
        y = _rotated(
            query + node * query_node + head * query_head, query_gain, query_epsilon,
            cosine, sine, node * angle_node, angle_column, inside, column, SIZE, HALF,
        )  # fmt: skip
        if query_out is not None:
            tl.store(query_out + (node * HEADS + head) * SIZE + column, y, inside)
    elif head < HEADS + KV_HEADS:
        head -= HEADS
        y = _rotated(
            key + node * key_node + head * key_head, key_gain, key_epsilon,
            cosine, sine, node * angle_node, angle_column, inside, column, SIZE, HALF,
        )  # fmt: skip
        if key_out is not None:
            tl.store(key_out + (node * KV_HEADS + head) * SIZE + column, y, inside)
        if rows is not None:
            row = tl.load(rows + node, node < nodes, other=-1).to(tl.int64)
            place = keys + head * head_stride + row * row_stride + column
            tl.store(place, y, inside & (row >= 0))
    elif rows is not None:
        head -= HEADS + KV_HEADS
        row = tl.load(rows + node, node < nodes, other=-1).to(tl.int64)
        exists = (row >= 0) & (column < VALUE_SIZE)
        x = tl.load(value + node * value_node + head * value_head + column, exists)
        tl.store(values + head * head_stride + row * row_stride + column, x, exists)


@triton.jit
def _rotated(
    source, gain, epsilon, cosine, sine, angle, angle_column, inside, column,
    SIZE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Heads of some nodes, normed where there is a gain, and turned by their angles."""
    x = tl.load(source + column, inside, other=0.0)
    y = x.to(tl.float32)
    if gain is not None:
        scale = tl.rsqrt(tl.sum(y * y, 1) / SIZE + epsilon)[:, None]
        y *= scale * tl.load(gain + column, inside, other=0.0).to(tl.float32)
        y = y.to(x.dtype).to(tl.float32)
    if HALF > 0:
        turns = inside & (column < 2 * HALF)
        is_first = column < HALF
        partner = tl.where(is_first, column + HALF, column - HALF)
        other = tl.load(source + partner, turns, other=0.0).to(tl.float32)
        if gain is not None:
            other *= scale * tl.load(gain + partner, turns, other=0.0).to(tl.float32)
            other = other.to(x.dtype).to(tl.float32)
        angle += tl.where(is_first, column, column - HALF) * angle_column
        turn = tl.load(cosine + angle, turns, other=1.0).to(tl.float32)
        lift = tl.load(sine + angle, turns, other=0.0).to(tl.float32)
        y = y * turn + tl.where(is_first, -lift, lift) * other
    return y.to(x.dtype)
