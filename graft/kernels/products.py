"""y = x @ weight * scale over panels, by the kernel for the weight's dtype, chosen at compile time.

Weights of 16 and 32 bits have no scale (an empty one); int8 has one for each output column. A
weight in GGUF's blocks is a table of its parts (`gguf_dots.part_of`), int64, without scales. Each
thread prepares the rows once and multiplies them with its columns.
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

from graft.kernels.gguf_dots import PANELS, multiply_blocks, quantise_rows
from graft.kernels.int8_dots import multiply_digits, pack_quads, split_rows
from graft.kernels.llvm_ir import has_sdot
from graft.kernels.panels import LANES, multiply_panels, pack_panels


def pack_weight(weight: np.ndarray, panels: np.ndarray | None = None) -> np.ndarray:
    """[N, K] -> [ceil(N / 16), K, 16] in the order of this machine's kernel; into `panels`, zeros,
    where given."""
    pack = pack_quads if weight.dtype == np.int8 and has_sdot() else pack_panels
    return pack(weight, panels)


def _by_dots(weight: types.Array) -> bool:
    return weight.dtype == types.int8 and has_sdot()


def _in_blocks(weight: types.Array) -> bool:
    return weight.dtype == types.int64


def panel_count(weight):
    """Panels of a weight; only for compiled callers."""
    raise NotImplementedError


@overload(panel_count)
def _panel_count(weight):
    def of_parts(weight):
        return weight[:, PANELS].sum()

    def of_array(weight):
        return weight.shape[0]

    return of_parts if _in_blocks(weight) else of_array


def prepare_rows(x, weight):
    """x [M, K] in the form for `multiply_columns`; only for compiled callers."""
    raise NotImplementedError


@overload(prepare_rows)
def _prepare_rows(x, weight):
    def split(x, weight):
        return split_rows(x)

    def keep(x, weight):
        return x, np.empty((x.shape[1], LANES), np.float32)  # for a widened panel

    def quantise(x, weight):
        return quantise_rows(x), x

    if _in_blocks(weight):
        return quantise
    return split if _by_dots(weight) else keep


def multiply_columns(rows, weight, scale, first, last, y):
    """Columns of panels first..last of y [M, N] = x @ weight * scale; only for compiled callers."""
    raise NotImplementedError


@overload(multiply_columns)
def _multiply_columns(rows, weight, scale, first, last, y):
    def by_dots(rows, weight, scale, first, last, y):
        multiply_digits(rows[0], rows[1], weight, scale, first, last, y)

    def by_widening(rows, weight, scale, first, last, y):
        multiply_panels(rows[0], weight, first, last, y, rows[1])
        if scale.shape[0]:
            scale_columns(y, scale, first * LANES, last * LANES)

    def by_blocks(rows, weight, scale, first, last, y):
        multiply_blocks(rows[0], weight, first, last, y)

    if _in_blocks(weight):
        return by_blocks
    return by_dots if _by_dots(weight) else by_widening


@njit(cache=True, boundscheck=False)
def scale_columns(y, scale, first, last):
    """y[:, c] *= scale[c] in columns first..last."""
    for m in range(y.shape[0]):
        for c in range(first, last):
            y[m, c] *= scale[c]


@njit(cache=True, boundscheck=False)
def multiply_share(x, weight, scale, t, threads, y):
    """Thread t's share of y = x @ weight * scale; the panels first..last it computed."""
    panels = panel_count(weight)
    first, last = panels * t // threads, panels * (t + 1) // threads
    multiply_columns(prepare_rows(x, weight), weight, scale, first, last, y)
    return first, last
