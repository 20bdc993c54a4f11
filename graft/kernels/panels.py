"""Small matrix products at memory bandwidth, on any CPU, bit for bit the same for any row count.

A weight matrix [N, K] is stored as panels of 16 output columns, [N / 16, K, 16], so a product reads
it sequentially, once. The inner loop is written in LLVM's vector types: 16 sums per row stay in
registers while k runs from 0 to K. Every output is summed in one fixed order for any number of
rows, so a step over a draft tree agrees with plain decoding to the last bit. BLAS does not
guarantee this, and on some machines (OpenBLAS on Arm) two rows cost three times as much as one.

Attention uses the same product: 16 keys are a panel for the scores, 16 value columns are one for
the weighted sum (`tree_attention_panels.py`). A KV cache of 16 or 8 bits is widened like weights.
"""

from collections.abc import Callable
from threading import Lock

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from graft.kernels.llvm_ir import I32, I64, address_of, advance, declared, load, loop_over_depth

LANES = 16
# The compiled calls release the GIL, but numba's workqueue thread pool aborts the process if two
# threads use it at once.
COMPUTING = Lock()
UNROLL = 4  # the depth K of every product must be a multiple of this
DIRECT_ROWS = 4  # up to this many rows weights are widened in registers; above, once per panel

_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_STORED = {
    types.float32: (_F32, 4),
    types.int16: (ir.HalfType(), 2),  # the bits of float16, which numba has no CPU type for
    types.uint16: (ir.IntType(16), 2),  # the bits of bfloat16: the upper half of a float32
    types.int8: (ir.IntType(8), 1),
    types.uint8: (ir.IntType(8), 1),  # the bits of float8_e4m3fn
}
_LARGEST = {types.int16: 65504.0, types.uint8: 448.0}  # of the dtypes with a small range


def pack_panels(weight: np.ndarray, panels: np.ndarray | None = None) -> np.ndarray:
    """[N, K] -> [ceil(N / 16), K, 16], missing columns zero; into `panels`, zeros, where given."""
    columns, depth = weight.shape
    if depth % UNROLL:
        raise ValueError(f"depth {depth} is not a multiple of {UNROLL}")
    if panels is None:
        panels = np.zeros((-(-columns // LANES), depth, LANES), weight.dtype)
    whole = columns // LANES
    panels[:whole] = weight[: whole * LANES].reshape(whole, LANES, depth).transpose(0, 2, 1)
    if columns % LANES:
        panels[whole, :, : columns % LANES] = weight[whole * LANES :].T
    return panels


def _widen(builder: ir.IRBuilder, loaded: ir.Value, stored: types.Type) -> ir.Value:
    """[16] stored weights as float32."""
    if stored == types.uint16:
        wide = ir.VectorType(I32, LANES)
        bits = builder.shl(builder.zext(loaded, wide), ir.Constant(wide, [16] * LANES))
        return builder.bitcast(bits, _VECTOR)
    if stored == types.int16:
        return builder.fpext(loaded, _VECTOR)
    if stored == types.uint8:
        return _widen_float8(builder, loaded)
    if stored == types.int8:
        return builder.sitofp(builder.sext(loaded, ir.VectorType(I32, LANES)), _VECTOR)
    return loaded


def _widen_float8(builder: ir.IRBuilder, loaded: ir.Value) -> ir.Value:
    """Without float32's own subnormal numbers, which take many x86 CPUs a hundred cycles."""
    wide = ir.VectorType(I32, LANES)

    def every(value: int) -> ir.Constant:
        return ir.Constant(wide, [value] * LANES)

    bits = builder.zext(loaded, wide)
    size = builder.shl(builder.and_(bits, every(0x7F)), every(20))
    normal = builder.add(size, every(120 << 23))
    least = ir.Constant(_VECTOR, [2.0**-6] * LANES)  # smaller numbers have no leading one
    small = builder.fsub(builder.bitcast(builder.add(size, every(121 << 23)), _VECTOR), least)
    is_small = builder.icmp_unsigned("<", size, every(1 << 23))
    found = builder.select(is_small, builder.bitcast(small, wide), normal)
    sign = builder.shl(builder.and_(bits, every(0x80)), every(24))
    return builder.bitcast(builder.or_(found, sign), _VECTOR)


@intrinsic
def narrow(typing_context, value, like):
    """A float32 as an element of the array `like`: rounded to the nearest, the even one of two;
    beyond the range to the largest number. For keys and values of a KV cache."""
    stored = like.dtype

    def generate(context, builder, signature, arguments) -> ir.Value:
        value = arguments[0]
        if stored == types.float32:
            return value
        bits = builder.bitcast(value, I32)
        if stored == types.uint16:
            odd = builder.and_(builder.lshr(bits, I32(16)), I32(1))
            rounded = builder.add(builder.add(bits, I32(0x7FFF)), odd)
            return builder.trunc(builder.lshr(rounded, I32(16)), ir.IntType(16))
        largest = ir.Constant(_F32, _LARGEST[stored])
        size = builder.bitcast(builder.and_(bits, I32(0x7FFFFFFF)), _F32)
        size = builder.select(builder.fcmp_ordered("<", size, largest), size, largest)
        sign = builder.and_(bits, I32(1 << 31))
        if stored == types.int16:
            signed = builder.or_(builder.bitcast(size, I32), sign)
            half = builder.fptrunc(builder.bitcast(signed, _F32), ir.HalfType())
            return builder.bitcast(half, ir.IntType(16))
        code = builder.or_(_float8_code(builder, size), builder.lshr(sign, I32(24)))
        return builder.trunc(code, ir.IntType(8))

    return stored(value, like), generate


def _float8_code(builder: ir.IRBuilder, size: ir.Value) -> ir.Value:
    """Of a number from 0 to 448."""
    bits = builder.bitcast(size, I32)
    odd = builder.and_(builder.lshr(bits, I32(20)), I32(1))
    rounded = builder.lshr(builder.add(builder.add(bits, I32(0x7FFFF)), odd), I32(20))
    normal = builder.sub(rounded, I32(120 << 3))
    units = ir.Constant(_F32, 2.0**14)  # float32 has steps of 2**-9 there, as float8 near zero
    shifted = builder.bitcast(builder.fadd(size, units), I32)
    small = builder.sub(shifted, builder.bitcast(units, I32))
    least = ir.Constant(_F32, 2.0**-6)
    return builder.select(builder.fcmp_ordered("<", size, least), small, normal)


def _micro_kernel(rows: int) -> Callable:
    """An intrinsic for y[m, 0:16] = sum over k of x[m, k] * panel[k, 0:16], m < rows."""

    @intrinsic
    def multiply(typing_context, x, panel, y, depth, x_stride, y_stride):
        stored = panel.dtype
        element, size = _STORED[stored]
        narrow, quad = ir.VectorType(element, LANES), ir.VectorType(_F32, UNROLL)

        def generate(context, builder, signature, arguments) -> ir.Value:
            x, panel, y, depth, x_stride, y_stride = arguments
            panel = builder.bitcast(panel, narrow.as_pointer())
            starts = [builder.gep(x, [builder.mul(x_stride, I64(m))]) for m in range(rows)]
            add = declared(builder, f"llvm.fmuladd.v{LANES}f32", _VECTOR, [_VECTOR] * 3)

            def accumulate(k: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                totals = list(totals)
                inputs = [load(builder, builder.gep(start, [k]), quad, 4) for start in starts]
                for step in range(UNROLL):
                    address = builder.gep(panel, [builder.add(k, I64(step))])
                    weights = _widen(builder, load(builder, address, narrow, size), stored)
                    lane = ir.Constant(ir.VectorType(I32, LANES), [step] * LANES)
                    for m, four in enumerate(inputs):
                        value = builder.shuffle_vector(four, ir.Constant(quad, ir.Undefined), lane)
                        totals[m] = builder.call(add, [value, weights, totals[m]])
                return totals

            zeros = [ir.Constant(_VECTOR, [0.0] * LANES)] * rows
            for m, summed in enumerate(loop_over_depth(builder, depth, UNROLL, zeros, accumulate)):
                address = builder.gep(y, [builder.mul(y_stride, I64(m))])
                builder.store(summed, builder.bitcast(address, _VECTOR.as_pointer())).align = 4
            return context.get_dummy_value()

        return types.void(x, panel, y, depth, x_stride, y_stride), generate

    return multiply


_one, _two, _three, _four, _five = (_micro_kernel(rows) for rows in range(1, 6))


@njit(cache=True, boundscheck=False)
def multiply_panel(x, panel, y, rows, depth, x_stride, y_stride):
    """y[m, 0:16] = x[m, :] @ panel for all rows; x, panel and y are pointers (`address_of`).

    With pointers numba compiles this once per weight dtype, not once per rank of the arrays.
    """
    m = 0
    while m < rows:
        source, target = advance(x, m * x_stride), advance(y, m * y_stride)
        left = rows - m
        if left >= 8 or left == 5:
            _five(source, panel, target, depth, x_stride, y_stride)
            m += 5
        elif left >= 4:
            _four(source, panel, target, depth, x_stride, y_stride)
            m += 4
        elif left == 3:
            _three(source, panel, target, depth, x_stride, y_stride)
            m += 3
        elif left == 2:
            _two(source, panel, target, depth, x_stride, y_stride)
            m += 2
        else:
            _one(source, panel, target, depth, x_stride, y_stride)
            m += 1


@intrinsic
def widen_panel(typing_context, source, target, depth):
    """Copy a [depth, 16] panel of narrow weights into one of float32."""
    stored = source.dtype
    element, size = _STORED[stored]

    def generate(context, builder, signature, arguments) -> ir.Value:
        source, target, depth = arguments
        narrow = ir.VectorType(element, LANES)
        source = builder.bitcast(source, narrow.as_pointer())
        target = builder.bitcast(target, _VECTOR.as_pointer())

        def copy(k: ir.Value, nothing: list[ir.Value]) -> list[ir.Value]:
            wide = _widen(builder, load(builder, builder.gep(source, [k]), narrow, size), stored)
            builder.store(wide, builder.gep(target, [k])).align = 4
            return nothing

        loop_over_depth(builder, depth, 1, [], copy)
        return context.get_dummy_value()

    return types.void(source, target, depth), generate


@njit(cache=True, boundscheck=False)
def multiply_panels(x, weight, first, last, y, wide):
    """Columns of panels first..last of y [M, >= 16 last] = x [M, K] @ weight, by one thread.

    `wide` is this thread's [K, 16] float32 scratch for widened panels.
    """
    rows, depth = x.shape
    y_stride = y.shape[1]
    for panel in range(first, last):
        source, result = address_of(weight, panel * depth * LANES), address_of(y, panel * LANES)
        if rows <= DIRECT_ROWS or weight.itemsize == 4:
            multiply_panel(address_of(x, 0), source, result, rows, depth, depth, y_stride)
        else:
            widen_panel(source, address_of(wide, 0), depth)
            multiply_panel(
                address_of(x, 0), address_of(wide, 0), result, rows, depth, depth, y_stride
            )
