"""Products with GGUF's blocks by integer dot products, the same bits for any number of rows.

Every input row is rounded to 8 bits: 32 inputs share a scale, their largest size / 127. Codes and
inputs are multiplied in integers, which is exact. For each 32 of a row's inputs float32 then takes
sum += input_scale * (scale * integers - minimum * inputs), always in this order. So a row's result
depends neither on the other rows nor on the CPU's instructions.

`gguf_blocks.py` describes the panels. Many rows share the work of unpacking: a panel's codes become
bytes and its scales float32 once, in the cache. A compiled kernel is called through its address:
only the formats of a model are compiled.
"""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from graft.kernels.gguf_blocks import ALIGNED, GROUP, MOST_UNPACKED, NUMBERED, BlockFormat
from graft.kernels.llvm_ir import I32, I64, declared, has_feature, has_sdot, load, loop_over_depth
from graft.kernels.panels import LANES

PANELS, DEPTH = 2, 4  # the columns of a part with the number of its panels and their depth
ENTRY = 48  # bytes of 32 inputs: codes, their scale, minus the sums of both halves, the whole sum
_BLOCKED = 1 << 18  # bytes of panels that all rows are multiplied with in turn: the L2 cache's
_MANY = 16  # rows that panels are unpacked for
_TINY, _LARGEST = np.float32(1e-30), np.float32(127)
_HALF, _ZERO = np.float32(0.5), np.float32(0)

_Scales = tuple[list[ir.Value], ir.Value | None]  # of 32 weights, and minus their minimum
_QUADS = GROUP // 4  # of codes, which a dot product adds up
_BYTE, _FLOAT, _HALF_FLOAT = ir.IntType(8), ir.FloatType(), ir.HalfType()
# An integer below 2^22 added to this number's bits gives the number plus the integer: dot products
# that start from these bits become float32 by one subtraction, which is exact.
_MAGIC, _MAGIC_BITS = 1.5 * 2**23, 0x4B400000


def _filled(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _spread(builder: ir.IRBuilder, vector: ir.Value, lane: int, count: int) -> ir.Value:
    """[count] times one lane: Arm multiplies with a lane without copying it."""
    places = ir.Constant(ir.VectorType(I32, count), [lane] * count)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def _lanes(builder: ir.IRBuilder, vector: ir.Value, first: int, count: int) -> ir.Value:
    places = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def _in_parts(builder: ir.IRBuilder, name: str, width: int, operands: list[ir.Value]) -> ir.Value:
    """An instruction for `width` lanes, applied to all; bytes are operands of Arm's."""
    part = ir.VectorType(I32, width)
    inner = ir.VectorType(_BYTE, 4 * width) if "aarch64" in name else part
    call = declared(builder, name, part, [part, inner, inner])
    found = []
    for first in range(0, operands[0].type.count, width):
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
    words, count = total.type, total.type.count
    pairs = ir.VectorType(ir.IntType(16), 2 * count)
    bytes_of, eight = _filled(words, 0x00FF00FF), _filled(pairs, 8)
    shorts = builder.bitcast(inputs, pairs)
    even = builder.bitcast(builder.and_(codes, bytes_of), pairs)
    shifted = builder.lshr(codes, _filled(words, 8))
    odd = builder.bitcast(builder.and_(shifted, bytes_of), pairs)
    first = builder.ashr(builder.shl(shorts, eight), eight)
    for code, value in ((even, first), (odd, builder.ashr(shorts, eight))):
        for start in (0, 1):
            places = ir.Constant(words, list(range(start, 2 * count, 2)))
            wide = [
                builder.sext(
                    builder.shuffle_vector(each, ir.Constant(pairs, ir.Undefined), places), words
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


def columns_of(rows: int) -> int:
    """Columns of a panel that so many rows are multiplied with at once: the sums of all stay in
    registers, of which Arm has 32 with four lanes."""
    return {8: 4, 4: 8}.get(rows, LANES) if instruction() == "sdot" else LANES


_AHEAD = 12288 if instruction() == "sdot" else 4096  # bytes: processors prefetch within a page
_TALLEST = 8 if instruction() in ("vnni512", "sdot") else 4  # rows multiplied at once
_SHARING = 4 if instruction() == "sdot" else _TALLEST  # ... with an unpacked panel


def _dot(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
    """total + the dot products of four codes (unsigned, below 128 on Arm) with four inputs."""
    found = instruction()
    if found == "widened":
        return _widened(builder, list(operands))
    name, width = {
        "vnni512": ("llvm.x86.avx512.vpdpbusd.512", 16),
        "vnni256": ("llvm.x86.avx512.vpdpbusd.256", 8),
        "sdot": ("llvm.aarch64.neon.sdot.v4i32.v16i8", 4),
    }[found]
    return _in_parts(builder, name, width, list(operands))


@dataclass(frozen=True, slots=True)
class _Weights:
    """Code that reads 32 weights of some columns, when it is asked for: what is read late takes no
    register before."""

    codes: Iterator[tuple[int, ir.Value]]
    scales: Callable[[], _Scales]


class _Panel:
    """Code that reads the weights of some columns of a panel."""

    def __init__(  # noqa: PLR0913
        self,
        builder: ir.IRBuilder,
        kind: BlockFormat,
        panel: ir.Value,
        depth: ir.Value,
        column: ir.Value,
        columns: int,
    ) -> None:
        self.builder, self.kind, self._panel = builder, kind, panel
        self.offset = 0 if instruction() == "sdot" and kind.bits == 8 else kind.offset
        self.words, self.floats = ir.VectorType(I32, columns), ir.VectorType(_FLOAT, columns)
        self._column = column  # the first one
        blocks = builder.udiv(depth, I64(kind.size))
        used = builder.add(builder.mul(blocks, I64(kind.scale_bytes)), I64(ALIGNED - 1))
        self._codes_at = builder.and_(used, I64(-ALIGNED))

    def _load(self, place: ir.Value, offset: int, element: ir.Type, size: int) -> ir.Value:
        """The columns' elements of `size` bytes; those of all begin at `place` + `offset`."""
        builder = self.builder
        own = builder.add(place, builder.mul(self._column, I64(size)))
        address = builder.gep(self._panel, [builder.add(own, I64(offset))])
        return load(builder, address, ir.VectorType(element, self.words.count), 1)

    def _prefetch(self, place: ir.Value, offset: int) -> None:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
        prefetch = self.builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        address = self.builder.gep(self._panel, [self.builder.add(place, I64(offset))])
        self.builder.call(prefetch, [address, I32(0), I32(3), I32(1)])

    def block_scales(self, block: ir.Value) -> list[ir.Value]:
        """float32 scale of a block and, where there is one, minus its minimum."""
        place = self.builder.mul(block, I64(self.kind.scale_bytes))
        found = [
            self.builder.fpext(self._load(place, 2 * LANES * i, _HALF_FLOAT, 2), self.floats)
            for i in range(1 + self.kind.has_minimum)
        ]
        return [found[0], *map(self.builder.fneg, found[1:])]

    def scales(self, block: ir.Value, group: ir.Value, outer: list[ir.Value]) -> _Scales:
        """float32 scales (of 32 weights, or of each 16) and minus the minimum, of a group."""
        builder, kind = self.builder, self.kind
        if not kind.nested:
            return outer[:1], outer[1] if kind.has_minimum else None
        count = GROUP // kind.group
        numbers = count + kind.has_minimum
        place = builder.add(
            builder.mul(block, I64(kind.scale_bytes)), builder.mul(group, I64(LANES * numbers))
        )
        start = 2 * LANES * (1 + kind.has_minimum)
        small = [self._small(place, start + LANES * i) for i in range(numbers)]
        scales = [builder.fmul(each, outer[0]) for each in small[:count]]
        return scales, builder.fmul(small[-1], outer[1]) if kind.has_minimum else None

    def _small(self, place: ir.Value, offset: int) -> ir.Value:
        """float32 of int8: as the last byte of a number whose bits count in ones, since conversions
        are slow on Arm."""
        builder = self.builder
        stored = self._load(place, offset, _BYTE, 1)
        count, lowest = stored.type.count, 0 if self.kind.has_minimum else 128
        if lowest:  # signed: from 0 to 255
            stored = builder.xor(stored, _filled(stored.type, 0x80))
        upper = ir.Constant(stored.type, [0, 0x4B, *[0] * (count - 2)])
        places = [place for i in range(count) for place in (i, count, count, count + 1)]
        mask = ir.Constant(ir.VectorType(I32, 4 * count), places)
        words = builder.shuffle_vector(stored, upper, mask)
        return builder.fsub(
            builder.bitcast(words, self.floats), _filled(self.floats, 2.0**23 + lowest)
        )

    def codes(self, group: ir.Value) -> Iterator[tuple[int, ir.Value]]:
        """Quads of a group, as they are unpacked, and each column's four codes."""
        builder, bits = self.builder, self.kind.bits
        place = builder.add(self._codes_at, builder.mul(group, I64(self.kind.code_bytes)))
        for i in range(bits if self.words.count == LANES else 0):
            self._prefetch(place, _AHEAD + 4 * LANES * i)

        def word(i: int) -> ir.Value:
            return self._load(place, 4 * LANES * i, I32, 4)

        if bits == 8:
            flip = _filled(self.words, 0x80808080)  # sdot's codes are signed
            for quad in range(8):
                read = word(quad)
                yield quad, builder.xor(read, flip) if instruction() == "sdot" else read
        elif bits == 6:
            for half in (0, 1):
                words = [word(3 * half + i) for i in range(3)]
                yield from enumerate(self._of_six(*words), 4 * half)
        else:
            upper = word(4) if bits == 5 else None
            for i in range(4):
                read = word(i)
                for quad, code in ((i, self._masked(read, 0x0F)), (i + 4, self._lowered(read, 4))):
                    if upper is not None:
                        code = builder.or_(code, self._moved(upper, 4 - quad, 0x10101010))
                    yield quad, code

    def _of_six(self, *words: ir.Value) -> list[ir.Value]:
        """Four times four codes of six bits; the upper bits of three words are the fourth."""
        last = self._lowered(words[0], 6)
        for word, down, mask in ((words[1], 4, 0x0C), (words[2], 2, 0x30)):
            last = self.builder.or_(last, self._masked(self._lowered(word, down), mask))
        return [*(self._masked(word, 0x3F) for word in words), last]

    def _masked(self, words: ir.Value, mask: int) -> ir.Value:
        return self.builder.and_(words, _filled(self.words, mask * 0x01010101))

    def _lowered(self, words: ir.Value, bits: int) -> ir.Value:
        """Each byte shifted: on Arm no mask is needed."""
        each = ir.VectorType(_BYTE, 4 * self.words.count)
        shifted = self.builder.lshr(self.builder.bitcast(words, each), _filled(each, bits))
        return self.builder.bitcast(shifted, self.words)

    def _moved(self, words: ir.Value, left: int, mask: int) -> ir.Value:
        move = self.builder.shl if left > 0 else self.builder.lshr
        moved = move(words, _filled(self.words, abs(left)))
        return self.builder.and_(moved, _filled(self.words, mask))


class _Rows:
    """Code that reads the entries of 32 inputs of some rows."""

    def __init__(
        self, builder: ir.IRBuilder, x: ir.Value, entry: ir.Value, count: int, columns: int
    ) -> None:
        """That entry of x, and those behind it, for `columns` columns."""
        self.builder, self._columns = builder, columns
        first = builder.gep(x, [builder.mul(entry, I64(ENTRY))])
        self._rows = [builder.gep(first, [I64(m * ENTRY)]) for m in range(count)]

    def _load(self, row: int, place: int, element: ir.Type, count: int = 1) -> ir.Value:
        address = self.builder.gep(self._rows[row], [I64(place)])
        return load(self.builder, address, ir.VectorType(element, count), 4)

    def codes(self, row: int, quad: int) -> ir.Value:
        """[columns] times the same four."""
        if instruction() != "sdot":
            return _spread(self.builder, self._load(row, 4 * quad, I32), 0, self._columns)
        sixteen = self._load(row, quad // 4 * 16, I32, 4)
        return _spread(self.builder, sixteen, quad % 4, self._columns)

    def starts(self, row: int, offset: int, parts: int) -> list[ir.Value]:
        """[columns] of each part, where dots start: minus `offset` times the sum of its codes, plus
        the bits of `_MAGIC`."""
        builder, kind = self.builder, ir.VectorType(I32, self._columns)
        if not offset:
            return [_filled(kind, _MAGIC_BITS)] * parts
        first = self.builder.extract_element
        sums = [first(self._load(row, GROUP + 4 * i, I32), I32(0)) for i in (1, 2)]
        if parts == 1:
            sums = [builder.add(*sums)]
        raised = [builder.add(builder.mul(each, I32(offset)), I32(_MAGIC_BITS)) for each in sums]
        one = ir.Constant(ir.VectorType(I32, 1), ir.Undefined)
        return [
            _spread(builder, builder.insert_element(one, each, I32(0)), 0, self._columns)
            for each in raised
        ]

    def scale_and_total(self, row: int) -> tuple[ir.Value, ir.Value]:
        """[columns] float32 each: the inputs' scale, and the sum of their codes."""
        four = self._load(row, GROUP, _FLOAT, 4)
        scale, total = (_spread(self.builder, four, lane, self._columns) for lane in (0, 3))
        return scale, total


class _UnpackedPanel:
    """Code that reads the weights of some columns of a panel that `emit_unpacking` wrote."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        kind: BlockFormat,
        panel: ir.Value,
        column: ir.Value,
        columns: int,
    ) -> None:
        self.builder, self.kind = builder, kind
        self.words, self.floats = ir.VectorType(I32, columns), ir.VectorType(_FLOAT, columns)
        self.offset = 0 if instruction() == "sdot" else kind.offset
        self._first = builder.gep(panel, [builder.mul(column, I64(4))])

    def read(self, group: ir.Value) -> _Weights:
        """Of a group."""
        builder, kind = self.builder, self.kind
        place = builder.gep(self._first, [builder.mul(group, I64(kind.unpacked_bytes))])
        numbers = kind.unpacked_numbers

        def read(i: int, vector: ir.Type) -> ir.Value:
            return load(builder, builder.gep(place, [I64(4 * LANES * i)]), vector, 4)

        def scales() -> _Scales:
            found = [read(i, self.floats) for i in range(numbers)]
            return (found[:-1], found[-1]) if kind.has_minimum else (found, None)

        codes = ((quad, read(numbers + quad, self.words)) for quad in range(_QUADS))
        return _Weights(codes, scales)


def _multiply_group(
    panel: _Panel | _UnpackedPanel, rows: _Rows, weights: _Weights, totals: list[ir.Value]
) -> list[ir.Value]:
    """The rows' totals with the products of 32 weights."""
    builder, floats = panel.builder, panel.floats
    parts = GROUP // panel.kind.group
    sums = [rows.starts(m, panel.offset, parts) for m in range(len(totals))]
    for quad, codes in weights.codes:
        part = quad * parts // _QUADS
        for m, own in enumerate(sums):
            own[part] = _dot(builder, own[part], codes, rows.codes(m, quad))
    fused = declared(builder, f"llvm.fma.v{floats.count}f32", floats, [floats] * 3)
    factors, minimum = weights.scales()
    read = [rows.scale_and_total(m) for m in range(len(totals))]
    # One operation of all rows at a time, so that none waits for the one before it.
    dots = [
        [builder.fsub(builder.bitcast(each, floats), _filled(floats, _MAGIC)) for each in own]
        for own in sums
    ]
    scaled = [builder.fmul(own[0], factors[0]) for own in dots]
    for i, factor in enumerate(factors[1:], 1):
        scaled = [
            builder.call(fused, [own[i], factor, known])
            for own, known in zip(dots, scaled, strict=True)
        ]
    if minimum is not None:
        scaled = [
            builder.call(fused, [minimum, inputs, known])
            for (_, inputs), known in zip(read, scaled, strict=True)
        ]
    return [
        builder.call(fused, [known, scale, total])
        for known, (scale, _), total in zip(scaled, read, totals, strict=True)
    ]


def _loop_over_groups(
    panel: _Panel, depth: ir.Value, initial: list[ir.Value], body: Callable
) -> list[ir.Value]:
    """values = body(group, weights, values) for a packed panel's groups of 32 weights."""
    builder, groups = panel.builder, panel.kind.size // GROUP

    def of_block(block: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        outer, first = panel.block_scales(block), builder.mul(block, I64(groups))

        def of_group(group: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            place = builder.add(first, group)
            weights = _Weights(panel.codes(place), lambda: panel.scales(block, group, outer))
            return body(place, weights, values)

        if groups == 1:
            return of_group(I64(0), values)
        return loop_over_depth(builder, I64(groups), 1, values, of_group)

    blocks = builder.udiv(depth, I64(panel.kind.size))
    return loop_over_depth(builder, blocks, 1, initial, of_block)


def emit_product(
    builder: ir.IRBuilder, kind: BlockFormat, rows: int, arguments: list[ir.Value]
) -> None:
    """Code for y[m] = x[m] @ panel; arguments are addresses of x, panel and y, depth and the stride
    of y's rows, all int64."""
    x, panel, y = (builder.inttoptr(each, _BYTE.as_pointer()) for each in arguments[:3])
    depth, stride = arguments[3:]

    def of_columns(column: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        source = _Panel(builder, kind, panel, depth, column, columns_of(rows))

        def add(group: ir.Value, weights: _Weights, totals: list[ir.Value]) -> list[ir.Value]:
            read = _Rows(builder, x, builder.mul(group, I64(rows)), rows, columns_of(rows))
            return _multiply_group(source, read, weights, totals)

        found = _loop_over_groups(source, depth, [_filled(source.floats, 0.0)] * rows, add)
        _store_rows(builder, found, y, column, stride)
        return []

    loop_over_depth(builder, I64(LANES), columns_of(rows), [], of_columns)


def emit_unpacked_product(
    builder: ir.IRBuilder, kind: BlockFormat, arguments: list[ir.Value]
) -> None:
    """`emit_product` of a tile of `_TALLEST` rows, for a panel that `emit_unpacking` wrote."""
    x, panel, y = (builder.inttoptr(each, _BYTE.as_pointer()) for each in arguments[:3])
    depth, stride = arguments[3:]
    columns, groups = columns_of(_SHARING), builder.udiv(depth, I64(GROUP))

    def of_rows(row: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        target = builder.gep(y, [builder.mul(builder.mul(row, stride), I64(4))])

        def of_columns(column: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            source = _UnpackedPanel(builder, kind, panel, column, columns)

            def add(group: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                first = builder.add(builder.mul(group, I64(_TALLEST)), row)
                read = _Rows(builder, x, first, _SHARING, columns)
                return _multiply_group(source, read, source.read(group), totals)

            zeros = [_filled(source.floats, 0.0)] * _SHARING
            found = loop_over_depth(builder, groups, 1, zeros, add)
            _store_rows(builder, found, target, column, stride)
            return []

        return loop_over_depth(builder, I64(LANES), columns, [], of_columns)

    loop_over_depth(builder, I64(_TALLEST), _SHARING, [], of_rows)


def _store_rows(
    builder: ir.IRBuilder, found: list[ir.Value], y: ir.Value, column: ir.Value, stride: ir.Value
) -> None:
    for m, summed in enumerate(found):
        place = builder.add(builder.mul(stride, I64(m)), column)
        address = builder.gep(y, [builder.mul(place, I64(4))])
        builder.store(summed, builder.bitcast(address, summed.type.as_pointer())).align = 4


def emit_unpacking(builder: ir.IRBuilder, kind: BlockFormat, arguments: list[ir.Value]) -> None:
    """Code that writes a panel's scales as float32 and its codes as bytes, group by group.

    Arguments are addresses of the panel and the result, and depth.
    """
    panel, target = (builder.inttoptr(each, _BYTE.as_pointer()) for each in arguments[:2])
    source = _Panel(builder, kind, panel, arguments[2], I64(0), LANES)

    def write(group: ir.Value, weights: _Weights, _: list[ir.Value]) -> list[ir.Value]:
        place = builder.gep(target, [builder.mul(group, I64(kind.unpacked_bytes))])

        def store(i: int, value: ir.Value) -> None:
            address = builder.gep(place, [I64(4 * LANES * i)])
            builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = 4

        for quad, codes in weights.codes:
            if instruction() == "sdot" and source.offset:
                separate = ir.VectorType(_BYTE, 4 * LANES)
                offset = _filled(separate, source.offset)
                codes = builder.sub(builder.bitcast(codes, separate), offset)
            store(kind.unpacked_numbers + quad, codes)
        factors, minimum = weights.scales()
        for i, each in enumerate(factors if minimum is None else [*factors, minimum]):
            store(i, each)
        return []

    _loop_over_groups(source, arguments[2], [], write)


@intrinsic(prefer_literal=True)
def multiply_rows(typing_context, number, rows, x, panel, y, depth, stride):  # noqa: ANN001, ANN201, PLR0913
    """See `emit_product`; `number` and `rows` are constants. 0 rows: the panel is unpacked."""
    kind, count = NUMBERED[number.literal_value], rows.literal_value

    def generate(context, builder, signature, arguments) -> ir.Value:  # noqa: ANN001
        if count:
            emit_product(builder, kind, count, arguments[2:])
        else:
            emit_unpacked_product(builder, kind, arguments[2:])
        return context.get_dummy_value()

    return types.void(number, rows, x, panel, y, depth, stride), generate


@intrinsic(prefer_literal=True)
def unpack(typing_context, number, panel, target, depth):  # noqa: ANN001, ANN201
    """See `emit_unpacking`; `number` is a constant."""
    kind = NUMBERED[number.literal_value]

    def generate(context, builder, signature, arguments) -> ir.Value:  # noqa: ANN001
        emit_unpacking(builder, kind, arguments[1:])
        return context.get_dummy_value()

    return types.void(number, panel, target, depth), generate


@cache
def compiled(number: int) -> "Any":  # noqa: ANN401, C901
    """The kernel of a format; `address` can be called with nine int64."""
    unpacked_bytes = NUMBERED[number].unpacked_bytes

    @cfunc(types.void(*[types.int64] * 9), cache=True)
    def multiply(x, rows, panels, count, size, depth, y, stride, space):  # noqa: ANN001, ANN202, C901, PLR0913
        entries, unpacked = depth // GROUP * ENTRY, depth // GROUP * unpacked_bytes
        sharing = rows // _TALLEST * _TALLEST if rows >= _MANY else 0
        at_once = max(1, _BLOCKED // (unpacked if sharing else size))
        for begin in range(0, count, at_once):
            end = min(begin + at_once, count)
            for each in range(begin, end if sharing else begin):
                unpack(number, panels + each * size, space + (each - begin) * unpacked, depth)
            m = 0
            while m < rows:
                height = _tile(rows - m)
                source = x + m * entries
                for each in range(begin, end):
                    panel, result = panels + each * size, y + 4 * (m * stride + each * LANES)
                    if m < sharing:
                        panel = space + (each - begin) * unpacked
                        multiply_rows(number, 0, source, panel, result, depth, stride)
                    elif height == _TALLEST:
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
def _call(typing_context, address, x, rows, panels, count, size, depth, y, stride, space):  # noqa: ANN001, ANN202, PLR0913
    """Call a kernel."""

    def generate(context, builder, signature, arguments) -> ir.Value:  # noqa: ANN001
        kind = ir.FunctionType(ir.VoidType(), [I64] * 9)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), generate


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
def _unpacked_space(parts):  # noqa: ANN001, ANN202
    """Bytes of the panels that are unpacked at once."""
    deepest = 0
    for i in range(parts.shape[0]):
        deepest = max(deepest, parts[i, DEPTH])
    return max(_BLOCKED, deepest // GROUP * MOST_UNPACKED)


@njit(cache=True, boundscheck=False)
def multiply_blocks(entries, parts, first, last, y):  # noqa: ANN001, ANN201
    """Columns of panels first..last of y [M, N] = x @ the weight of these parts, side by side."""
    rows, stride = y.shape
    before = 0
    space = np.empty(_unpacked_space(parts) if rows >= _MANY else 0, np.uint8)
    for i in range(parts.shape[0]):
        kernel, panels, count, size, depth = parts[i]
        begin, end = max(first - before, 0), min(last - before, count)
        if begin < end:
            target = y.ctypes.data + 4 * (before + begin) * LANES
            _call(
                kernel, entries.ctypes.data, rows, panels + begin * size, end - begin, size, depth,
                target, stride, space.ctypes.data,
            )  # fmt: skip
        before += count
