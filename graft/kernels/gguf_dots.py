"""Products with GGUF's blocks by integer dot products, the same bits for any number of rows.

Every input row is rounded to 8 bits: 32 inputs share a scale, their largest size / 127. Codes and
inputs are multiplied in integers, which is exact. For each 32 of a row's inputs float32 then takes
sum += input_scale * (scale * integers - minimum * inputs), always in this order. So a row's result
depends neither on the other rows nor on the CPU's instructions.

`gguf_blocks.py` describes the panels. A compiled kernel is called through its address: only the
formats of a model are compiled.
"""

import platform
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from graft.kernels.gguf_blocks import ALIGNED, GROUP, NUMBERED, BlockFormat
from graft.kernels.llvm_ir import I32, I64, declared, has_feature, has_sdot, load, loop_over_depth
from graft.kernels.panels import LANES

PANELS = 2  # the column of a part with the number of its panels
ENTRY = 48  # bytes of 32 inputs: codes, their scale, minus the sums of both halves, the whole sum
_BLOCKED = 1 << 18  # bytes of panels that all rows are multiplied with in turn: the L2 cache's
_AHEAD = 4096  # bytes: processors prefetch to the end of a page only
_TINY, _LARGEST = np.float32(1e-30), np.float32(127)
_HALF, _ZERO = np.float32(0.5), np.float32(0)

_BYTE = ir.IntType(8)
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(I32, LANES)
_BYTES, _SHORTS = ir.VectorType(_BYTE, LANES), ir.VectorType(ir.IntType(16), 2 * LANES)


def _every(number: int) -> ir.Constant:
    return ir.Constant(_WORDS, [number] * LANES)


def _spread(builder: ir.IRBuilder, scalar: ir.Value, kind: ir.VectorType) -> ir.Value:
    """A vector of 16 times the same."""
    undefined = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(undefined, scalar, I32(0))
    return builder.shuffle_vector(one, undefined, _every(0))


def _lanes(builder: ir.IRBuilder, vector: ir.Value, first: int, count: int) -> ir.Value:
    places = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def _in_parts(builder: ir.IRBuilder, name: str, width: int, operands: list[ir.Value]) -> ir.Value:
    """An instruction for `width` lanes, applied to all 16; bytes are operands of Arm's."""
    part = ir.VectorType(I32, width)
    inner = ir.VectorType(_BYTE, 4 * width) if "aarch64" in name else part
    call = declared(builder, name, part, [part, inner, inner])
    found = []
    for first in range(0, LANES, width):
        total, codes, inputs = (_lanes(builder, each, first, width) for each in operands)
        codes, inputs = (builder.bitcast(each, inner) for each in (codes, inputs))
        found.append(builder.call(call, [total, codes, inputs]))
    while len(found) > 1:
        joined = ir.Constant(ir.VectorType(I32, 2 * width), list(range(2 * width)))
        pairs = zip(found[::2], found[1::2], strict=True)
        found, width = [builder.shuffle_vector(a, b, joined) for a, b in pairs], 2 * width
    return found[0]


def _widened(builder: ir.IRBuilder, operands: list[ir.Value]) -> ir.Value:
    """The dot product in 16 bits, in a form that LLVM has an instruction for on all of x86."""
    total, codes, inputs = operands
    bytes_of = _every(0x00FF00FF)
    eight = ir.Constant(_SHORTS, [8] * 2 * LANES)
    shorts = builder.bitcast(inputs, _SHORTS)
    even = builder.bitcast(builder.and_(codes, bytes_of), _SHORTS)
    odd = builder.bitcast(builder.and_(builder.lshr(codes, _every(8)), bytes_of), _SHORTS)
    first = builder.ashr(builder.shl(shorts, eight), eight)
    for code, value in ((even, first), (odd, builder.ashr(shorts, eight))):
        for start in (0, 1):
            places = ir.Constant(_WORDS, list(range(start, 2 * LANES, 2)))
            wide = [
                builder.sext(
                    builder.shuffle_vector(each, ir.Constant(_SHORTS, ir.Undefined), places), _WORDS
                )
                for each in (code, value)
            ]
            total = builder.add(total, builder.mul(*wide))
    return total


@cache
def instruction() -> str:
    """The integer dot product that kernels are compiled to: vnni512, vnni256, sdot or widened."""
    if platform.machine() in ("aarch64", "arm64"):
        return "sdot" if has_sdot() else "widened"
    if has_feature("avx512vnni"):
        return "vnni512"
    return "vnni256" if has_feature("avxvnni") else "widened"


_TALLEST = 8 if instruction() == "vnni512" else 4  # rows whose sums stay in registers


def _dot(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
    """total [16] + the dot products of four codes (unsigned, below 128 on Arm) with four inputs."""
    found = instruction()
    if found == "widened":
        return _widened(builder, list(operands))
    name, width = {
        "vnni512": ("llvm.x86.avx512.vpdpbusd.512", 16),
        "vnni256": ("llvm.x86.avx512.vpdpbusd.256", 8),
        "sdot": ("llvm.aarch64.neon.sdot.v4i32.v16i8", 4),
    }[found]
    return _in_parts(builder, name, width, list(operands))


class _Panel:
    """Code that reads 32 weights of 16 columns."""

    def __init__(self, builder: ir.IRBuilder, kind: BlockFormat, panel: ir.Value, at: ir.Value):
        self.builder, self.kind = builder, kind
        self._panel, self._codes_at = panel, at

    def _load(self, place: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
        address = self.builder.gep(self._panel, [self.builder.add(place, I64(offset))])
        return load(self.builder, address, kind, 1)

    def _prefetch(self, place: ir.Value, offset: int) -> None:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
        prefetch = self.builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        address = self.builder.gep(self._panel, [self.builder.add(place, I64(offset))])
        self.builder.call(prefetch, [address, I32(0), I32(3), I32(1)])

    def scales(self, group: ir.Value) -> tuple[list[ir.Value], ir.Value | None]:
        """float32 scales (of 32 weights, or of each 16) and the minimum."""
        builder, kind, halves = self.builder, self.kind, ir.VectorType(ir.HalfType(), LANES)
        groups = kind.size // GROUP
        block = builder.mul(builder.udiv(group, I64(groups)), I64(kind.scale_bytes))
        floats = [
            builder.fpext(self._load(block, 2 * LANES * i, halves), _FLOATS)
            for i in range(1 + kind.has_minimum)
        ]
        if kind.nested:
            count = GROUP // kind.group
            own = builder.mul(
                builder.urem(group, I64(groups)), I64(LANES * (count + kind.has_minimum))
            )
            place = builder.add(block, own)
            start = 2 * LANES * len(floats)
            small = [
                builder.sitofp(
                    builder.sext(self._load(place, start + LANES * i, _BYTES), _WORDS), _FLOATS
                )
                for i in range(count + kind.has_minimum)
            ]
            scales = [builder.fmul(each, floats[0]) for each in small[:count]]
            return scales, builder.fmul(small[-1], floats[1]) if kind.has_minimum else None
        return floats[:1], floats[1] if kind.has_minimum else None

    def codes(self, group: ir.Value) -> list[ir.Value]:
        """Eight times four codes of each column."""
        builder, bits = self.builder, self.kind.bits
        place = builder.add(self._codes_at, builder.mul(group, I64(self.kind.code_bytes)))
        for i in range(bits):
            self._prefetch(place, _AHEAD + 4 * LANES * i)
        words = [self._load(place, 4 * LANES * i, _WORDS) for i in range(bits)]
        if bits == 8:
            flip = _every(0x80808080)  # sdot's codes are signed
            return [builder.xor(w, flip) for w in words] if instruction() == "sdot" else words
        nibbles = _every(0x0F0F0F0F)
        found = [builder.and_(w, nibbles) for w in words[:4]]
        found += [builder.and_(builder.lshr(w, _every(4)), nibbles) for w in words[:4]]
        if bits == 5:
            highs = [self._moved(words[4], 4 - j, 0x10101010) for j in range(8)]
        elif bits == 6:
            highs = [self._moved(words[4 + j // 4], 4 - j % 4 * 2, 0x30303030) for j in range(8)]
        else:
            return found
        return [builder.or_(low, high) for low, high in zip(found, highs, strict=True)]

    def _moved(self, words: ir.Value, left: int, mask: int) -> ir.Value:
        move = self.builder.shl if left > 0 else self.builder.lshr
        return self.builder.and_(move(words, _every(abs(left))), _every(mask))


class _Rows:
    """Code that reads the entries of 32 inputs of some rows."""

    def __init__(self, builder: ir.IRBuilder, first: ir.Value, count: int) -> None:
        self.builder = builder
        self._rows = [builder.gep(first, [I64(m * ENTRY)]) for m in range(count)]

    def _load(self, row: int, place: int, element: ir.Type) -> ir.Value:
        return load(self.builder, self.builder.gep(self._rows[row], [I64(place)]), element, 4)

    def codes(self, row: int, quad: int) -> ir.Value:
        """[16] times the same four."""
        return _spread(self.builder, self._load(row, 4 * quad, I32), _WORDS)

    def offsets(self, row: int, offset: int, parts: int) -> list[ir.Value]:
        """[16] of each part: minus `offset` times the sum of its codes, where dots start."""
        if not offset:
            return [_every(0)] * parts
        sums = [self._load(row, GROUP + 4 * i, I32) for i in (1, 2)]
        if parts == 1:
            sums = [self.builder.add(*sums)]
        return [
            self.builder.mul(_spread(self.builder, each, _WORDS), _every(offset)) for each in sums
        ]

    def scale(self, row: int) -> ir.Value:
        """[16] float32."""
        return _spread(self.builder, self._load(row, GROUP, ir.FloatType()), _FLOATS)

    def total(self, row: int) -> ir.Value:
        """[16] float32: the sum of the codes."""
        return _spread(self.builder, self._load(row, GROUP + 12, ir.FloatType()), _FLOATS)


def _multiply_group(
    panel: _Panel, group: ir.Value, rows: _Rows, totals: list[ir.Value]
) -> list[ir.Value]:
    """The rows' totals with the products of 32 weights."""
    builder, kind = panel.builder, panel.kind
    scales, minimum = panel.scales(group)
    codes = panel.codes(group)
    offset = 0 if instruction() == "sdot" and kind.bits == 8 else kind.offset
    sums = [rows.offsets(m, offset, len(scales)) for m in range(len(totals))]
    for quad, weights in enumerate(codes):
        part = quad * len(scales) // len(codes)
        for m, own in enumerate(sums):
            own[part] = _dot(builder, own[part], weights, rows.codes(m, quad))
    fused = declared(builder, f"llvm.fma.v{LANES}f32", _FLOATS, [_FLOATS] * 3)
    found = []
    for m, (own, total) in enumerate(zip(sums, totals, strict=True)):
        scaled = builder.fmul(builder.sitofp(own[0], _FLOATS), scales[0])
        for integers, scale in zip(own[1:], scales[1:], strict=True):
            scaled = builder.call(fused, [builder.sitofp(integers, _FLOATS), scale, scaled])
        if minimum is not None:
            scaled = builder.call(fused, [builder.fneg(minimum), rows.total(m), scaled])
        found.append(builder.call(fused, [scaled, rows.scale(m), total]))
    return found


def emit_product(
    builder: ir.IRBuilder, kind: BlockFormat, rows: int, arguments: list[ir.Value]
) -> None:
    """Code for y[m, 0:16] = x[m] @ panel; arguments are addresses of x, panel and y, depth and the
    stride of y's rows, all int64."""
    x, panel, y, depth, stride = arguments
    x, panel = (builder.inttoptr(each, _BYTE.as_pointer()) for each in (x, panel))
    y = builder.inttoptr(y, ir.FloatType().as_pointer())
    blocks = builder.udiv(depth, I64(kind.size))
    used = builder.add(builder.mul(blocks, I64(kind.scale_bytes)), I64(ALIGNED - 1))
    source = _Panel(builder, kind, panel, builder.and_(used, I64(-ALIGNED)))

    def accumulate(group: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        first = builder.gep(x, [builder.mul(group, I64(rows * ENTRY))])
        return _multiply_group(source, group, _Rows(builder, first, rows), totals)

    zeros = [ir.Constant(_FLOATS, [0.0] * LANES)] * rows
    groups = builder.udiv(depth, I64(GROUP))
    for m, summed in enumerate(loop_over_depth(builder, groups, 1, zeros, accumulate)):
        address = builder.gep(y, [builder.mul(stride, I64(m))])
        builder.store(summed, builder.bitcast(address, _FLOATS.as_pointer())).align = 4


@intrinsic(prefer_literal=True)
def multiply_rows(typing_context, number, rows, x, panel, y, depth, stride):  # noqa: ANN001, ANN201, PLR0913
    """See `emit_product`; `number` and `rows` are constants."""
    kind, count = NUMBERED[number.literal_value], rows.literal_value

    def generate(context, builder, signature, arguments) -> ir.Value:  # noqa: ANN001
        emit_product(builder, kind, count, arguments[2:])
        return context.get_dummy_value()

    return types.void(number, rows, x, panel, y, depth, stride), generate


@cache
def compiled(number: int) -> "Any":  # noqa: ANN401
    """The kernel of a format; `address` can be called with eight int64."""

    @cfunc(types.void(*[types.int64] * 8), cache=True)
    def multiply(x, rows, panels, count, size, depth, y, stride):  # noqa: ANN001, ANN202, PLR0913
        at_once = max(1, _BLOCKED // size)
        entries = depth // GROUP * ENTRY
        for begin in range(0, count, at_once):
            m = 0
            while m < rows:
                height = _tile(rows - m)
                source = x + m * entries
                for each in range(begin, min(begin + at_once, count)):
                    panel, result = panels + each * size, y + 4 * (m * stride + each * LANES)
                    if height == _TALLEST:
                        multiply_rows(number, _TALLEST, source, panel, result, depth, stride)
                    elif height == 4:
                        multiply_rows(number, 4, source, panel, result, depth, stride)
                    elif height == 2:
                        multiply_rows(number, 2, source, panel, result, depth, stride)
                    else:
                        multiply_rows(number, 1, source, panel, result, depth, stride)
                m += height

    return multiply


@njit(inline="always")
def _tile(left):  # noqa: ANN001, ANN202
    """How many of the rows that are left are multiplied together."""
    if left >= _TALLEST:
        return _TALLEST
    return 4 if left >= 4 else 2 if left >= 2 else 1


@intrinsic
def _call(typing_context, address, x, rows, panels, count, size, depth, y, stride):  # noqa: ANN001, ANN202, PLR0913
    """Call a kernel."""

    def generate(context, builder, signature, arguments) -> ir.Value:  # noqa: ANN001
        kind = ir.FunctionType(ir.VoidType(), [I64] * 8)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), generate


def part_of(panels: np.ndarray, number: int, depth: int) -> list[int]:
    """The numbers that describe panels of `pack_blocks`; they do not keep them alive."""
    return [compiled(number).address, panels.ctypes.data, *panels.shape, depth]


@njit(cache=True, boundscheck=False, error_model="numpy", fastmath={"nnan", "nsz"})
def quantise_rows(x):  # noqa: ANN001, ANN201
    """Entries of x [M, K] as bytes: of a tile's rows those of the same 32 inputs lie together."""
    rows, depth = x.shape
    groups = depth // GROUP
    entries = np.empty((rows * groups, ENTRY // 4), np.int32)
    codes, floats = entries.view(np.int8), entries.view(np.float32)
    m = 0
    while m < rows:
        height = _tile(rows - m)
        for r in range(height):
            for g in range(groups):
                place = m * groups + g * height + r
                values, code = x[m + r, g * GROUP : (g + 1) * GROUP], codes[place, :GROUP]
                best = _ZERO
                for k in range(GROUP):
                    size = abs(values[k])
                    best = size if size > best else best
                inverse = _LARGEST / best if best > _TINY else _ZERO
                for k in range(GROUP):
                    exact = values[k] * inverse
                    code[k] = np.int32(exact + (_HALF if exact >= _ZERO else -_HALF))
                first, second = np.int32(0), np.int32(0)
                for k in range(GROUP // 2):
                    first += code[k]
                    second += code[k + GROUP // 2]
                floats[place, 8] = best / _LARGEST
                entries[place, 9], entries[place, 10] = -first, -second
                floats[place, 11] = np.float32(first + second)
        m += height
    return entries


@njit(cache=True, boundscheck=False)
def multiply_blocks(entries, parts, first, last, y):  # noqa: ANN001, ANN201
    """Columns of panels first..last of y [M, N] = x @ the weight of these parts, side by side."""
    rows, stride = y.shape
    before = 0
    for i in range(parts.shape[0]):
        kernel, panels, count, size, depth = parts[i]
        begin, end = max(first - before, 0), min(last - before, count)
        if begin < end:
            target = y.ctypes.data + 4 * (before + begin) * LANES
            _call(
                kernel, entries.ctypes.data, rows, panels + begin * size, end - begin, size, depth,
                target, stride,
            )  # fmt: skip
        before += count
