"""The parts of numba and llvmlite that the CPU kernels rely on, each alone."""

import platform

import llvmlite
import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from graft.kernels.llvm_ir import (
    I64,
    address_of,
    advance,
    declared,
    emits,
    load,
    loop_over_depth,
)

VERSIONS = f"with numba {numba.__version__} and llvmlite {llvmlite.__version__}"
PAIR = ir.VectorType(ir.FloatType(), 2)


@intrinsic
def sum_pairs(typing_context, pointer, count):
    """The sum of all squares of `count` float32, two at a time."""

    def generate(context, builder, signature, arguments):
        pointer, count = arguments
        add = declared(builder, "llvm.fmuladd.v2f32", PAIR, [PAIR] * 3)
        assert declared(builder, "llvm.fmuladd.v2f32", PAIR, [PAIR] * 3) is add

        def step(k, totals):
            pair = load(builder, builder.gep(pointer, [k]), PAIR, 4)
            return [builder.call(add, [pair, pair, totals[0]])]

        zeros = ir.Constant(PAIR, [0.0, 0.0])
        (total,) = loop_over_depth(builder, count, 2, [zeros], step)
        first, second = (builder.extract_element(total, I64(lane)) for lane in range(2))
        return builder.fadd(first, second)

    return types.float32(pointer, types.int64), generate


@njit
def squares(array, start, skipped, count):
    return sum_pairs(advance(address_of(array, start), skipped), count)


def test_addresses_and_loops_lower_as_the_kernels_expect():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for start, skipped, count in ((0, 0, 24), (4, 0, 2), (3, 5, 16)):
        part = array.ravel()[start + skipped :][:count]
        found = squares(array, start, skipped, count)
        assert found == (part**2).sum(), f"numba lowers arrays or pointers differently {VERSIONS}"


def test_llvm_names_the_instructions_it_emits():
    multiply = "define float @f(float %a, float %b) {\n %c = fmul float %a, %b\n ret float %c\n}"
    known = {"x86_64": "mulss", "aarch64": "fmul", "arm64": "fmul"}.get(platform.machine())
    if known is None:
        pytest.skip(f"no instruction listed for {platform.machine()}")
    assert emits(multiply, known), f"LLVM emits no {known} {VERSIONS}"
    assert not emits(multiply, "no_such_instruction")
