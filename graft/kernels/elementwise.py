"""The operations between the matrix products of a decoder layer, for one row at a time."""

import numpy as np
from numba import njit

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_MAGIC = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to an integer
_SMALLEST, _LARGEST = np.float32(-87.0), np.float32(88.0)
_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_C3, _C4, _C5, _C6 = (
    np.float32(1.6666665459e-1),
    np.float32(4.1665795894e-2),
    np.float32(8.3334519073e-3),
    np.float32(1.3981999507e-3),
)


@njit(inline="always", fastmath={"contract"})
def fast_exp(x):
    """exp(x) of a float32 within 3e-7, exactly 0 below -87, at most exp(88); LLVM vectorises it."""
    bounded = min(max(x, _SMALLEST), _LARGEST)
    whole = bounded * _LOG2E + _MAGIC - _MAGIC
    f = bounded - whole * _LN2_HIGH - whole * _LN2_LOW
    series = _ONE + f + f * f * (_HALF + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6))))
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    return series * power if x >= _SMALLEST else _ZERO


@njit(cache=True, boundscheck=False, fastmath={"contract", "reassoc", "nsz"})
def rms_norm(x, weight, epsilon, out):
    """out = x / sqrt(mean(x^2) + epsilon) * weight, all [E]."""
    total = _ZERO
    for e in range(x.shape[0]):
        total += x[e] * x[e]
    scale = _ONE / np.sqrt(total / np.float32(x.shape[0]) + epsilon)
    for e in range(x.shape[0]):
        out[e] = x[e] * scale * weight[e]


@njit(cache=True, boundscheck=False, fastmath={"contract"})
def rotate(x, cosine, sine, out):
    """Rotary embedding of one head [D]: pairs are d and d + D / 2; cosine and sine [D / 2]."""
    half = x.shape[0] // 2
    for d in range(half):
        first, second = x[d], x[d + half]
        out[d] = first * cosine[d] - second * sine[d]
        out[d + half] = second * cosine[d] + first * sine[d]


@njit(cache=True, boundscheck=False, fastmath={"nnan", "nsz"})
def largest(x, count):
    """The maximum of x[:count], count > 0."""
    best = x[0]
    for j in range(count):
        best = x[j] if x[j] > best else best
    return best


@njit(cache=True, boundscheck=False, fastmath={"contract"})
def exponentiate(x, count, subtract, scale):
    """x[:count] = exp((x - subtract) * scale)."""
    for j in range(count):
        x[j] = fast_exp((x[j] - subtract) * scale)


# Without the numpy error model every division is tested for zero, which stops vectorisation.
@njit(cache=True, boundscheck=False, fastmath={"contract"}, error_model="numpy")
def gate(paired, first, last, out):
    """SwiGLU in columns first..last of one row: out [F] from gates and ups [2 F]."""
    half = out.shape[0]
    gates, ups, result = paired[first:last], paired[half + first : half + last], out[first:last]
    for c in range(gates.shape[0]):  # a loop from 0 needs no test for negative indices
        result[c] = gates[c] / (_ONE + fast_exp(-gates[c])) * ups[c]
