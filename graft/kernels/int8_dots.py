"""Products with int8 weights by Arm's dot-product instruction, exact in integers.

Widening an int8 weight to float32 costs more instructions than multiplying it: on a Neoverse N1
one row then takes longer than with bfloat16, twice the bytes. `sdot` multiplies and adds sixteen
pairs of int8 at once. Every input row is therefore converted to fixed point, 23 bits below its
largest value, as three int8 digits. Each digit's sum is an exact integer; the three are combined
at the end. Integer sums do not depend on the order, so rows are independent bit for bit. The
rounding error is no larger than that of float32 sums.

Without the instruction (x86) `panels.py` widens the weights, which is fast enough there.
"""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from graft.kernels.llvm_ir import I32, I64, address_of, declared, load, loop_over_depth
from graft.kernels.panels import LANES, pack_panels

DIGITS = 3
STEP = 16  # the depth of every product must be a multiple of this
_QUAD = 4  # products that one lane of the instruction adds up
_LARGEST = np.float32(127 * 65536)  # below the maximum of three digits, as rounding adds to it
_TINY = np.float32(1e-31)  # rows below this are zero; their inverse would overflow
_HIGH, _MIDDLE, _HALF, _ZERO = (np.float32(x) for x in (65536, 256, 0.5, 0))

_BYTES, _WORDS = ir.VectorType(ir.IntType(8), 16), ir.VectorType(I32, 4)


def pack_quads(weight: np.ndarray, panels: np.ndarray | None = None) -> np.ndarray:
    """[N, K] int8 -> [ceil(N / 16), K, 16], inside each panel [K / 4, 16, 4]: `sdot`'s order."""
    if weight.shape[1] % STEP:
        raise ValueError(f"depth {weight.shape[1]} is not a multiple of {STEP}")
    panels = pack_panels(weight, panels)
    count, depth, _ = panels.shape
    quads = panels.reshape(count, depth // _QUAD, _QUAD, LANES).transpose(0, 1, 3, 2)
    panels[:] = quads.reshape(panels.shape)
    return panels


def _micro_kernel(rows: int) -> Callable:
    """An intrinsic for sums[r, 0:16] = digits[r, :] @ panel in int32, r < rows."""

    @intrinsic
    def multiply(typing_context, digits, panel, sums, depth):
        def generate(context, builder, signature, arguments) -> ir.Value:
            digits, panel, sums, depth = arguments
            starts = [builder.gep(digits, [builder.mul(depth, I64(r))]) for r in range(rows)]
            name, groups = "llvm.aarch64.neon.sdot.v4i32.v16i8", LANES // _QUAD
            dot = declared(builder, name, _WORDS, [_WORDS, _BYTES, _BYTES])

            def bytes_at(start: ir.Value, offset: ir.Value) -> ir.Value:
                return load(builder, builder.gep(start, [offset]), _BYTES, 1)

            def accumulate(k: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                totals = list(totals)
                inputs = [builder.bitcast(bytes_at(start, k), _WORDS) for start in starts]
                place = builder.mul(k, I64(LANES))
                for quad in range(STEP // _QUAD):
                    lane = ir.Constant(_WORDS, [quad] * _QUAD)
                    values = [
                        builder.bitcast(
                            builder.shuffle_vector(each, ir.Constant(_WORDS, ir.Undefined), lane),
                            _BYTES,
                        )
                        for each in inputs
                    ]
                    for group in range(groups):
                        offset = (quad * groups + group) * STEP
                        weights = bytes_at(panel, builder.add(place, I64(offset)))
                        for r, value in enumerate(values):
                            i = r * groups + group
                            totals[i] = builder.call(dot, [totals[i], weights, value])
                return totals

            zeros = [ir.Constant(_WORDS, [0] * _QUAD)] * (rows * groups)
            for i, summed in enumerate(loop_over_depth(builder, depth, STEP, zeros, accumulate)):
                address = builder.gep(sums, [I64(i * _QUAD)])
                builder.store(summed, builder.bitcast(address, _WORDS.as_pointer())).align = 4
            return context.get_dummy_value()

        return types.void(digits, panel, sums, depth), generate

    return multiply


_one, _two = (_micro_kernel(rows * DIGITS) for rows in (1, 2))


@njit(cache=True, boundscheck=False, error_model="numpy")
def split_rows(x):
    """x [M, K] as digits [M, 3, K] int8, the highest first, and the unit [M] of the lowest."""
    rows, depth = x.shape
    digits = np.empty((rows, DIGITS, depth), np.int8)
    unit = np.empty(rows, np.float32)
    for m in range(rows):
        row, high, middle, low = x[m], digits[m, 0], digits[m, 1], digits[m, 2]
        best = _ZERO
        for k in range(depth):
            size = abs(row[k])
            best = size if size > best else best
        unit[m] = best / _LARGEST
        inverse = _LARGEST / best if best > _TINY else _ZERO
        for k in range(depth):
            exact = row[k] * inverse
            whole = np.int32(exact + (_HALF if exact >= _ZERO else -_HALF))
            last = np.int32(((whole + 128) & 255) - 128)
            whole = np.int32((whole - last) >> 8)
            second = np.int32(((whole + 128) & 255) - 128)
            low[k], middle[k], high[k] = last, second, (whole - second) >> 8
    return digits, unit


@njit(cache=True, boundscheck=False)
def multiply_digits(digits, unit, weight, scale, first, last, y):
    """Columns of panels first..last of y [M, N] = x @ weight * scale, x from `split_rows`."""
    rows, _, depth = digits.shape
    sums = np.empty((2, DIGITS, LANES), np.int32)
    for panel in range(first, last):
        weights = address_of(weight, panel * depth * LANES)
        scales = scale[panel * LANES : (panel + 1) * LANES]
        for m in range(0, rows, 2):
            source = address_of(digits, m * DIGITS * depth)
            if rows - m >= 2:
                _two(source, weights, address_of(sums, 0), depth)
            else:
                _one(source, weights, address_of(sums, 0), depth)
            for r in range(min(2, rows - m)):
                target = y[m + r, panel * LANES : (panel + 1) * LANES]
                high, middle, low = sums[r, 0], sums[r, 1], sums[r, 2]
                for c in range(LANES):
                    total = np.float32(high[c]) * _HIGH + np.float32(middle[c]) * _MIDDLE
                    target[c] = (total + np.float32(low[c])) * unit[m + r] * scales[c]
