"""GGUF's quantised blocks in the order of the CPU kernels, not a bit of them rounded.

Every format is integer codes with a scale, and in some a minimum, for each group of weights:
weight = scale * (code - offset) - minimum. K formats store scale and minimum of a group as small
integers times two numbers of a block of 256.

A panel holds 16 output columns: first their scales, then their codes, 32 of every column at a
time. Four consecutive codes of a column are one lane of 32 bits, because the integer dot products
of Arm and x86 add up four.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from graft.kernels.llvm_ir import I32, I64, address_of, load
from graft.kernels.panels import LANES

GROUP = 32  # codes of a column that lie together, and inputs that share a scale
ALIGNED = 64  # bytes: no load of 16 lanes touches two cache lines
_QUADS = GROUP // 4
_WORDS = ir.VectorType(I32, LANES)
_FIRST = ir.Constant(_WORDS, [0] * LANES)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How GGUF stores a block of `size` weights in `stored` bytes; places are bytes in it."""

    number: int  # GGML's
    size: int
    stored: int
    bits: int  # of a code
    offset: int = 0
    group: int = GROUP  # weights with one scale
    nested: bool = False  # groups have integer scales, times the block's
    scale_at: int = 0
    minimum_at: int = -1  # of the block's minimum; -1 where there is none
    small_at: int = 0  # the integer scales, if they are nested
    low_at: int = 2  # the codes' lower bits, or all eight
    high_at: int = 0  # their upper bits, if they have more than four

    @property
    def has_minimum(self) -> bool:
        """Whether a minimum is subtracted."""
        return self.minimum_at >= 0

    @property
    def scale_bytes(self) -> int:
        """Bytes of a block's scales and minima in a panel."""
        numbers = 1 + self.has_minimum
        small = (self.size // self.group + self.has_minimum * self.size // GROUP) * self.nested
        return LANES * (2 * numbers + small)

    @property
    def code_bytes(self) -> int:
        """Bytes of 32 codes of every column in a panel."""
        return GROUP * LANES * self.bits // 8

    @property
    def unpacked_numbers(self) -> int:
        """Scales, and the minimum where there is one, of 32 weights."""
        return GROUP // self.group + self.has_minimum

    @property
    def unpacked_bytes(self) -> int:
        """Bytes of 32 weights of every column: float32 scales and codes of a byte."""
        return LANES * (4 * self.unpacked_numbers + GROUP)

    def codes_at(self, depth: int) -> int:
        """Where a panel's codes begin."""
        return -(-depth // self.size * self.scale_bytes // ALIGNED) * ALIGNED

    def panel_bytes(self, depth: int) -> int:
        """Size of a panel."""
        return self.codes_at(depth) + depth // GROUP * self.code_bytes


FORMATS = {
    "Q4_0": BlockFormat(2, 32, 18, bits=4, offset=8),
    "Q4_1": BlockFormat(3, 32, 20, bits=4, minimum_at=2, low_at=4),
    "Q5_0": BlockFormat(6, 32, 22, bits=5, offset=16, low_at=6, high_at=2),
    "Q5_1": BlockFormat(7, 32, 24, bits=5, minimum_at=2, low_at=8, high_at=4),
    "Q8_0": BlockFormat(8, 32, 34, bits=8, offset=128),
    "Q4_K": BlockFormat(12, 256, 144, bits=4, nested=True, minimum_at=2, small_at=4, low_at=16),
    "Q5_K": BlockFormat(
        13, 256, 176, bits=5, nested=True, minimum_at=2, small_at=4, low_at=48, high_at=16
    ),
    "Q6_K": BlockFormat(
        14,
        256,
        210,
        bits=6,
        offset=32,
        group=16,
        nested=True,
        scale_at=208,
        small_at=192,
        low_at=0,
        high_at=128,
    ),
}
MOST_UNPACKED = max(each.unpacked_bytes for each in FORMATS.values())
NUMBERED = {each.number: each for each in FORMATS.values()}


def empty_panels(rows: int, depth: int, number: int) -> np.ndarray:
    """[ceil(rows / 16), bytes], zeroed, for `pack_blocks`."""
    count, size = -(-rows // LANES), NUMBERED[number].panel_bytes(depth)
    whole = np.zeros(count * size + ALIGNED, np.uint8)
    start = -whole.ctypes.data % ALIGNED
    return whole[start : start + count * size].reshape(count, size)


def pack_blocks(raw: np.ndarray, number: int, order: np.ndarray, panels: np.ndarray) -> None:
    """Fill panels with a tensor's rows [N, bytes] in this order.

    ValueError where a scale is not finite.
    """
    kind = NUMBERED[number]
    depth = raw.shape[1] // kind.stored * kind.size
    fields = (
        kind.stored // 2, kind.bits, kind.codes_at(depth) // 2, kind.scale_bytes // 2,
        kind.scale_at // 2, kind.minimum_at // 2, 0 if kind.nested else 0x8000,
        kind.small_at // 2, kind.size // kind.group if kind.nested else 0,
    )  # fmt: skip
    words = raw.view(np.uint16)
    if not pack_panels(words, order, fields, _sources(number), panels.view(np.uint16)):
        raise ValueError("a scale is not finite")


@cache
def _sources(number: int) -> np.ndarray:
    """[words, count, 4] of a block: what each 32-bit word of a panel's column is made of.

    Up to eight times bits of four codes: the 16-bit word where they begin, the bits below them, how
    many they are, and where in the panel's bytes they go. Words of 4 bits hold two codes in a byte,
    words of 6 bits one code and two bits of a fourth.
    """
    kind = NUMBERED[number]
    k = np.arange(0, kind.size, 4)
    if kind.bits == 8:
        low, low_shift, high, high_shift = k, 0 * k, 0 * k, 0 * k
    elif kind.size == GROUP:
        low, low_shift, high, high_shift = k % 16, k // 16 * 4, 0 * k, k
    elif kind.bits == 6:
        low, low_shift = k // 128 * 64 + k % 64, k % 128 // 64 * 4
        high, high_shift = k // 128 * 32 + k % 32, k % 128 // 32 * 2
    else:
        low, low_shift, high, high_shift = k // 64 * 32 + k % 32, k % 64 // 32 * 4, k % 32, k // 32
    lows = np.stack([(kind.low_at + low) // 2, low_shift], -1).reshape(-1, _QUADS, 2)
    highs = np.stack([(kind.high_at + high) // 2, high_shift], -1).reshape(-1, _QUADS, 2)
    words = np.full((len(lows), kind.bits, _QUADS, 4), -1)  # -1: no more codes

    def put(
        word: int, place: int, source: np.ndarray, bits: int, left: int, skipped: int = 0
    ) -> None:
        words[:, word, place, :2] = source + [0, skipped]
        words[:, word, place, 2:] = bits, left

    if kind.bits == 6:
        for word in range(6):
            half, i = word // 3 * 4, word % 3
            put(word, 0, lows[:, half + i], 4, 0)
            put(word, 1, highs[:, half + i], 2, 4)
            fourth = highs if i == 2 else lows
            put(word, 2, fourth[:, half + 3], 2, 6, 2 * i if i < 2 else 0)
        return words.reshape(-1, _QUADS, 4)
    for quad in range(_QUADS):
        if kind.bits == 8:
            put(quad, 0, lows[:, quad], 8, 0)
        else:
            put(quad % 4, quad // 4, lows[:, quad], 4, quad // 4 * 4)
        if kind.bits == 5:
            put(4, quad, highs[:, quad], 1, quad)
    return words.reshape(-1, _QUADS, 4)


@njit(parallel=True, cache=True, boundscheck=False, nogil=True)
def pack_panels(raw, order, fields, sources, panels):  # noqa: ANN001, ANN201
    """Fill panels [P, 16-bit words] from rows [N, 16-bit words]; whether all scales are finite."""
    wrong = np.zeros(panels.shape[0], np.bool_)
    for panel in prange(panels.shape[0]):
        first = panel * LANES
        count = min(LANES, order.shape[0] - first)
        starts = np.zeros(LANES, np.int64)  # missing columns have any codes, and no scale
        starts[:count] = order[first : first + count] * raw.shape[1]
        blocks, flat = raw.shape[1] // fields[0], raw.reshape(-1)
        _pack_codes(flat, starts, blocks, fields, sources, panels[panel])
        wrong[panel] = _pack_scales(flat, starts[:count], blocks, fields, panels[panel])
    return not wrong.any()


@intrinsic
def _or_codes(typing_context, raw, starts, at, shift, spread, mask, left, out):  # noqa: ANN001, ANN202, PLR0913
    """out[c] |= (word of column c >> shift, of side-by-side bits one in each byte, & mask) << left.

    raw, starts [16] and out [16] are pointers. Written in vectors: it takes half the load time.
    """

    def generate(context, builder, signature, arguments) -> ir.Value:  # noqa: ANN001
        raw, starts, at, shift, spread, mask, left, out = arguments

        def every(value: ir.Value) -> ir.Value:
            one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), value, I32(0))
            return builder.shuffle_vector(one, ir.Constant(_WORDS, ir.Undefined), _FIRST)

        words = ir.Constant(_WORDS, ir.Undefined)
        for c in range(LANES):
            place = builder.add(builder.load(builder.gep(starts, [I64(c)])), at)
            words = builder.insert_element(
                words, load(builder, builder.gep(raw, [place]), I32, 2), I32(c)
            )
        words = builder.lshr(words, every(shift))
        nibbles = builder.and_(words, ir.Constant(_WORDS, [15] * LANES))
        apart = builder.mul(nibbles, ir.Constant(_WORDS, [0x00204081] * LANES))
        words = builder.and_(builder.select(spread, apart, words), every(mask))
        known = load(builder, out, _WORDS, 4)
        target = builder.bitcast(out, _WORDS.as_pointer())
        builder.store(builder.or_(known, builder.shl(words, every(left))), target).align = 4
        return context.get_dummy_value()

    signature = types.void(
        raw, starts, types.int64, types.uint32, types.boolean, types.uint32, types.uint32, out
    )
    return signature, generate


@njit(cache=True, boundscheck=False)
def _pack_codes(raw, starts, blocks, fields, sources, panel):  # noqa: ANN001, ANN202, PLR0913
    stored, bits, codes_at = fields[:3]
    out = panel[codes_at:].view(np.uint32)
    words = sources.shape[0]
    out[: blocks * words * LANES] = 0
    for block in range(blocks):
        for word in range(words):
            apart = bits == 5 and words == bits and word == 4  # single bits, side by side
            for t in range(_QUADS):
                at, shift, width, left = sources[word, t]
                if at < 0:
                    break
                _or_codes(
                    address_of(raw, 0), address_of(starts, 0), at + block * stored, shift, apart,
                    ((1 << width) - 1) * 0x01010101, left,
                    address_of(out, (block * words + word) * LANES),
                )  # fmt: skip
    if bits == 8:
        for i in range(blocks * words * LANES):
            out[i] ^= np.uint32(0x80808080)


@njit(cache=True, boundscheck=False)
def _pack_scales(raw, starts, blocks, fields, panel):  # noqa: ANN001, ANN202
    """Whether a scale or minimum is not finite."""
    stored = fields[0]
    scale_words, scale_at, minimum_at, sign, small_at, small_count = fields[3:]
    packed, small = raw.view(np.uint8), panel.view(np.uint8)  # no views in loops: they are counted
    wrong = False
    for block in range(blocks):
        for c in range(starts.shape[0]):
            source, target = starts[c] + block * stored, block * scale_words + c
            panel[target] = raw[source + scale_at]
            wrong |= panel[target] & 0x7C00 == 0x7C00
            place = 2 * (target - c + LANES) + c
            if minimum_at >= 0:
                panel[target + LANES] = raw[source + minimum_at] ^ sign
                wrong |= panel[target + LANES] & 0x7C00 == 0x7C00
                place += 2 * LANES
                if small_count:
                    _unpack_small(packed, 2 * (source + small_at), small, place)
            else:
                for i in range(small_count):
                    small[place + i * LANES] = packed[2 * (source + small_at) + i]
    return wrong


@njit(inline="always", boundscheck=False)
def _unpack_small(packed, at, small, place):  # noqa: ANN001, ANN202
    """Eight integer scales and minima of six bits each, from twelve bytes."""
    for i in range(4):
        first, second, third = packed[at + i], packed[at + 4 + i], packed[at + 8 + i]
        low, high = place + 2 * i * LANES, place + 2 * (i + 4) * LANES
        small[low], small[low + LANES] = first & 63, second & 63
        small[high] = third & 15 | first >> 6 << 4
        small[high + LANES] = third >> 4 | second >> 6 << 4
