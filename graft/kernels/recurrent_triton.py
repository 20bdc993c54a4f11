"""Convolutions and scans of recurrent layers along the paths of trees, for captured steps.

A step's nodes lie in walks: the nodes of one sequence, parents before children. What changes
between steps is read from the device: `links` [N, 2] int32 has for each node its parent, or
-1 - slot of the state before its sequence, and the slot where its own state is stored, -1 for
nowhere; `walks` [W, 2] int32 has the first node of each sequence and the one behind its last;
`sequences` [1] is their number. A parent's state is stored unless the child is the next node.

One program goes over a walk for a part of a head, with the state in registers. A node's numbers
are computed the same way whatever else is in the step, prompts included.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from graft.kernels.launch import overlapped, wait

CHANNELS = 512  # of a program that convolves
TILE = 1024  # elements of a state that a program of one warp holds: sums need no barrier
WALKS = 32  # programs side by side; more sequences take turns


def convolve(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    links: Tensor,
    *,
    silu: bool,
) -> Tensor:
    """[C, N]: causal convolution with weight [C, W] over inputs [C, N] along each node's path, plus
    the bias [C], then silu; states [slots, C, W - 1] hold the last inputs."""
    channels, nodes = inputs.shape
    assert weight.is_contiguous(), "weights must be contiguous"
    assert states.is_contiguous(), "states must be contiguous"
    output = inputs.new_empty(nodes, channels)
    _convolve[(nodes, triton.cdiv(channels, CHANNELS))](
        inputs, weight, weight if bias is None else bias, states, links, output, channels,
        inputs.stride(1), inputs.stride(0), WIDTH=weight.shape[1], BIASED=bias is not None,
        SILU=silu, BLOCK=CHANNELS, **overlapped(inputs.device),
    )  # fmt: skip
    return output.T


@triton.jit(do_not_specialize_on_alignment=["links"])
def _convolve(
    inputs, weight, bias, states, links, output, channels, node_stride, channel_stride,
    WIDTH: tl.constexpr, BIASED: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Some channels of a node."""
    node = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    wait(PDL)
    slot = tl.load(links + 2 * node + 1)
    kept = states + slot.to(tl.int64) * channels * (WIDTH - 1) + channel * (WIDTH - 1)
    column = inputs + channel.to(tl.int64) * channel_stride
    x = tl.load(column + node.to(tl.int64) * node_stride, inside, other=0.0)
    total = x.to(tl.float32) * tl.load(weight + channel * WIDTH + WIDTH - 1, inside).to(tl.float32)
    above = node  # then the node's ancestor, or -1 - slot once the path has left the step
    left = 0  # taps that are in the state before the step
    for tap in tl.static_range(1, WIDTH):
        tl.store(kept + WIDTH - 1 - tap, x, inside & (slot >= 0))
        if above >= 0:
            above = tl.load(links + 2 * above)
        x = tl.load(column + above.to(tl.int64) * node_stride, inside & (above >= 0), other=0.0)
        if above < 0:
            left += 1
            before = states + (-1 - above).to(tl.int64) * channels * (WIDTH - 1)
            x = tl.load(before + channel * (WIDTH - 1) + WIDTH - 1 - left, inside, other=0.0)
        factor = tl.load(weight + channel * WIDTH + WIDTH - 1 - tap, inside)
        total += x.to(tl.float32) * factor.to(tl.float32)
    if BIASED:
        total += tl.load(bias + channel, inside).to(tl.float32)
    if SILU:
        total *= tl.sigmoid(total)
    tl.store(output + node.to(tl.int64) * channels + channel, total, inside)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor,
    states: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],
    *,
    normed: bool,
) -> Tensor:
    """[N, H, V]: outputs of a gated delta rule for query and key [N, H, D], value [N, H, V], decay
    [N, H] or [N, H, D] and strength [N, H]; states [slots, H, D, V] are float32. `normed`: queries
    and keys are first. The tables are links, walks and sequences."""
    nodes, heads, size = key.shape
    width = value.shape[2]
    _check(states, query, key, value)
    by_channel = decay.dim() > strength.dim()
    assert not by_channel or decay.stride(2) == 1, "a head must be contiguous"
    rows = triton.next_power_of_2(size)
    columns = _part(rows, width)
    output = query.new_empty(nodes, heads, width)
    _delta_rule[(heads, triton.cdiv(width, columns), _programs(tables))](
        query, key, value, decay, strength, states, *tables, output,
        *_strides(query, key, value, decay, strength), size**-0.5,
        HEADS=heads, SIZE=size, WIDTH=width, ROWS=rows, COLUMNS=columns, NORMED=normed,
        BY_CHANNEL=by_channel, num_warps=1, **overlapped(key.device),
    )  # fmt: skip
    return output


@triton.jit(do_not_specialize_on_alignment=["links", "walks", "sequences"])
def _delta_rule(
    query, key, value, decay, strength, states, links, walks, sequences, output,
    query_node, query_head, key_node, key_head, value_node, value_head,
    decay_node, decay_head, strength_node, strength_head, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, NORMED: tl.constexpr, BY_CHANNEL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some components of the values of a head."""
    head = tl.program_id(0)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    has_row, has_column = row < SIZE, column < WIDTH
    inside = has_row[:, None] & has_column[None, :]
    place = (head * SIZE + row[:, None]) * WIDTH + column[None, :]
    wait(PDL)
    for walk in range(tl.program_id(2), tl.load(sequences), tl.num_programs(2)):
        state = tl.zeros([ROWS, COLUMNS], tl.float32)
        first = tl.load(walks + 2 * walk).to(tl.int64)
        for number in range(tl.load(walks + 2 * walk + 1) - first):
            node = first + number
            q = tl.load(query + node * query_node + head * query_head + row, has_row, other=0.0)
            k = tl.load(key + node * key_node + head * key_head + row, has_row, other=0.0)
            v = tl.load(value + node * value_node + head * value_head + column, has_column)
            beta = tl.load(strength + node * strength_node + head * strength_head)
            fading = decay + node * decay_node + head * decay_head
            state = _state_before(state, states, links, node, place, inside, HEADS * SIZE * WIDTH)
            if BY_CHANNEL:
                state *= tl.exp(tl.load(fading + row, has_row, other=0.0).to(tl.float32))[:, None]
            else:
                state *= tl.exp(tl.load(fading).to(tl.float32))
            q, k = q.to(tl.float32), k.to(tl.float32)
            if NORMED:
                q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6)
                k *= tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
            known = tl.sum(state * k[:, None], 0)
            change = (v.to(tl.float32) - known) * beta.to(tl.float32)
            state += k[:, None] * change[None, :]
            y = tl.sum(state * (q * scale)[:, None], 0)
            tl.store(output + (node * HEADS + head) * WIDTH + column, y, has_column)
            _keep_state(state, states, links, node, place, inside, HEADS * SIZE * WIDTH)


def selective_update(
    inputs: Tensor,
    steps: Tensor,
    b: Tensor,
    c: Tensor,
    states: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],
    *,
    rates: Tensor,
    skip: Tensor,
    bias: Tensor,
    limits: tuple[float, float],
) -> Tensor:
    """[N, H, P] float32: outputs of Mamba 2 for inputs [N, H, P], time steps [N, H], B and C
    [N, G, S], and of the heads rates, skips and biases of time steps [H]; states [slots, H, P, S]
    are float32. Time steps stay within the limits. The tables are links, walks and sequences."""
    nodes, heads, size = inputs.shape
    groups, width = b.shape[1:]
    _check(states, inputs, b, c)
    columns = triton.next_power_of_2(width)
    rows = _part(columns, size)
    output = torch.empty(nodes, heads, size, dtype=torch.float32, device=inputs.device)
    _selective_update[(heads, triton.cdiv(size, rows), _programs(tables))](
        inputs, steps, b, c, rates, skip, bias, states, *tables, output,
        *_strides(inputs, steps, b, c), *limits,
        HEADS=heads, EACH=heads // groups, SIZE=size, WIDTH=width, ROWS=rows, COLUMNS=columns,
        num_warps=1, **overlapped(inputs.device),
    )  # fmt: skip
    return output


@triton.jit(do_not_specialize_on_alignment=["links", "walks", "sequences"])
def _selective_update(
    inputs, steps, b, c, rates, skip, bias, states, links, walks, sequences, output,
    input_node, input_head, step_node, step_head, b_node, b_group, c_node, c_group,
    lowest, highest,
    HEADS: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some components of a head."""
    head = tl.program_id(0)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    has_row, has_column = row < SIZE, column < WIDTH
    inside = has_row[:, None] & has_column[None, :]
    place = (head * SIZE + row[:, None]) * WIDTH + column[None, :]
    shift = tl.load(bias + head).to(tl.float32)
    share = tl.load(skip + head).to(tl.float32)
    wait(PDL)
    rate = tl.load(rates + head).to(tl.float32)
    for walk in range(tl.program_id(2), tl.load(sequences), tl.num_programs(2)):
        state = tl.zeros([ROWS, COLUMNS], tl.float32)
        first = tl.load(walks + 2 * walk).to(tl.int64)
        for number in range(tl.load(walks + 2 * walk + 1) - first):
            node, group = first + number, head // EACH
            x = tl.load(inputs + node * input_node + head * input_head + row, has_row, other=0.0)
            wide_b = tl.load(b + node * b_node + group * b_group + column, has_column, other=0.0)
            wide_c = tl.load(c + node * c_node + group * c_group + column, has_column, other=0.0)
            step = tl.load(steps + node * step_node + head * step_head).to(tl.float32)
            step = tl.minimum(tl.maximum(_softplus(step + shift), lowest), highest)
            state = _state_before(state, states, links, node, place, inside, HEADS * SIZE * WIDTH)
            x = x.to(tl.float32)
            added = x[:, None] * (step * wide_b.to(tl.float32))[None, :]
            state = state * tl.exp(step * rate) + added
            y = tl.sum(state * wide_c.to(tl.float32)[None, :], 1) + share * x
            tl.store(output + (node * HEADS + head) * SIZE + row, y, has_row)
            _keep_state(state, states, links, node, place, inside, HEADS * SIZE * WIDTH)


@triton.jit
def _state_before(state, states, links, node, place, inside, ALL: tl.constexpr):
    """The state of a node's parent: `state` itself if that is the node before."""
    parent = tl.load(links + 2 * node)
    if (parent < 0) | (parent != node - 1):
        stored = tl.load(links + 2 * tl.maximum(parent, 0) + 1)
        slot = tl.where(parent < 0, -1 - parent, stored).to(tl.int64)
        tl.debug_barrier()  # this program may have stored it
        state = tl.load(states + slot * ALL + place, inside, other=0.0)
    return state


@triton.jit
def _keep_state(state, states, links, node, place, inside, ALL: tl.constexpr):
    """Store a node's state in its slot if it has one."""
    slot = tl.load(links + 2 * node + 1)
    tl.store(states + slot.to(tl.int64) * ALL + place, state, inside & (slot >= 0))


@triton.jit
def _softplus(x):
    """log(1 + exp(x)); the quotient makes up for the rounding of 1 + y."""
    y = tl.exp(-tl.abs(x))
    above = 1.0 + y
    small = tl.where(above == 1.0, y, tl.log(above) * y / tl.where(above == 1.0, 1.0, above - 1.0))
    return tl.maximum(x, 0.0) + small


def _check(states: Tensor, *heads: Tensor) -> None:
    assert states.dtype == torch.float32, "states of scans are kept in 32 bits"
    assert states.is_contiguous(), "states must be contiguous"
    assert all(each.stride(2) == 1 for each in heads), "a head must be contiguous"


def _part(whole: int, size: int) -> int:
    """Of `size` components with `whole` numbers of a state each: those of one program."""
    return min(max(TILE // whole, 1), triton.next_power_of_2(size))


def _programs(tables: tuple[Tensor, Tensor, Tensor]) -> int:
    return min(len(tables[1]), WALKS)


def _strides(*inputs: Tensor) -> list[int]:
    """Of the nodes and heads."""
    return [stride for each in inputs for stride in each.stride()[:2]]
