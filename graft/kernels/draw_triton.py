"""Sampling with Gumbel noise in Triton: one pass over the logits instead of torch's twenty.

The noise equals `sampling.gumbel`'s, computed in the kernel in float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 2048  # logits of a row per program
# splitmix64's constants as int64
GOLDEN = tl.constexpr(-0x61C8864680B583EB)
FIRST = tl.constexpr(-0x40A7B892E31B1A47)
SECOND = tl.constexpr(-0x6B2FB644ECCEEE15)


def draw_rows(logits: Tensor, keys: Tensor, temperatures: Tensor) -> Tensor:
    """Token [M] int64 of each row of logits [M, V]: the argmax of logits / temperature + noise,
    ties to the first. `keys` [M] int64 are the noise keys, `temperatures` [M] float64."""
    rows, size = logits.shape
    assert logits.is_contiguous(), "rows must be contiguous"
    parts = triton.cdiv(size, PART)
    values = torch.empty(rows, parts, dtype=torch.float64, device=logits.device)
    places = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _draw_part[(rows, parts)](
        logits, keys, temperatures, values, places, size, PART=PART, num_warps=8
    )
    padded = triton.next_power_of_2(parts)
    _draw_row[(rows,)](values, places, drawn, parts, PARTS=padded, num_warps=1)
    return drawn


@triton.jit
def _gumbel(key, token):
    x = (token + 1) * GOLDEN + key
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    x = x ^ _shifted(x, 31)
    uniform = (_shifted(x, 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2 ** -53
    return -tl.log(-tl.log(uniform))


@triton.jit
def _shifted(x, places: tl.constexpr):
    """Logical shift to the right."""
    return (x >> places) & ((1 << (64 - places)) - 1)


@triton.jit
def _draw_part(logits, keys, temperatures, values, places, size, PART: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * PART + tl.arange(0, PART)
    inside = column < size
    x = tl.load(logits + row * size + column, inside, other=float("-inf")).to(tl.float32)
    scaled = tl.div_rn(x, tl.load(temperatures + row).to(tl.float32))
    noisy = scaled.to(tl.float64) + _gumbel(tl.load(keys + row), column.to(tl.int64))
    noisy = tl.where(noisy != noisy, float("inf"), noisy)  # NaN is the maximum, as in torch
    noisy = tl.where(inside, noisy, float("-inf"))
    best = tl.max(noisy, 0)
    place = row * tl.num_programs(1) + part
    tl.store(values + place, best)
    tl.store(places + place, tl.min(tl.where(noisy == best, column, 0x7FFFFFFF), 0).to(tl.int64))


@triton.jit
def _draw_row(values, places, drawn, parts, PARTS: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    value = tl.load(values + row * parts + part, part < parts, other=float("-inf"))
    place = tl.load(places + row * parts + part, part < parts, other=0x7FFFFFFF)
    best = tl.max(value, 0)
    tl.store(drawn + row, tl.min(tl.where(value == best, place, 0x7FFFFFFF), 0))


def noisy_rows(logits: Tensor, tokens: Tensor, keys: Tensor, heat: Tensor) -> Tensor:
    """[N, n] float32: logits [N, n] of these tokens, times heat[0], plus noise times heat[1].

    `keys` [B] int64 and `heat` [2, B] float32 are per sequence; B sequences have equally many rows.
    """
    rows, size = logits.shape
    assert logits.is_contiguous(), "rows must be contiguous"
    assert heat.is_contiguous(), "heat must be contiguous"
    noisy = torch.empty(rows, size, dtype=torch.float32, device=logits.device)
    batch = len(keys)
    _noisy_rows[(rows, triton.cdiv(size, PART))](
        logits, tokens, keys, heat, noisy, size, rows // batch, batch, PART=PART, num_warps=8
    )
    return noisy


# Another batch size does not recompile.
@triton.jit(do_not_specialize=["width", "batch"], do_not_specialize_on_alignment=["keys", "heat"])
def _noisy_rows(logits, tokens, keys, heat, noisy, size, width, batch, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = column < size
    sequence = row // width
    factor, share = tl.load(heat + sequence), tl.load(heat + batch + sequence)
    token = tl.load(tokens + column, inside, other=0)
    noise = _gumbel(tl.load(keys + sequence), token).to(tl.float32)
    x = tl.load(logits + row * size + column, inside, other=0.0).to(tl.float32)
    tl.store(noisy + row * size + column, factor * x + share * noise, inside)
