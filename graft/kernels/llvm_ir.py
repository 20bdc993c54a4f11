"""The parts of numba's and llvmlite's code generation that the CPU kernels build on.

Everything that depends on how numba lowers arrays and pointers is in this file;
tests/kernels/test_llvm_ir.py checks each part and names the versions when one changed.
"""

import platform
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I32, I64 = ir.IntType(32), ir.IntType(64)

_PROBE = """
define i32 @probe(<16 x i8> %a, <16 x i8> %b) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %z = mul <16 x i32> %x, %y
  %s = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %z)
  ret i32 %s
}
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
"""


def emits(assembly: str, instruction: str) -> bool:
    """Whether LLVM compiles this IR to that instruction for the CPU that numba compiles for."""
    features = numba.config.CPU_FEATURES
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=numba.config.CPU_NAME or llvm.get_host_cpu_name(), features=features
    )
    return instruction in target.emit_assembly(llvm.parse_assembly(assembly))


@cache
def has_sdot() -> bool:
    """Whether numba compiles for a CPU with Arm's `sdot`: LLVM then uses it for a dot product. Its
    list of an Arm CPU's features is incomplete."""
    return platform.machine() in ("aarch64", "arm64") and emits(_PROBE, "sdot")


def has_feature(name: str) -> bool:
    """Whether numba compiles for a CPU with this feature, by LLVM's name."""
    features = numba.config.CPU_FEATURES
    if features is not None:
        return f"+{name}" in features.split(",")
    return numba.config.CPU_NAME != "generic" and bool(llvm.get_host_cpu_features().get(name))


def declared(
    builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Type]
) -> ir.Function:
    """The LLVM intrinsic of this name, declared once per module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
    """The vector at an address, aligned like one of its elements."""
    loaded = builder.load(builder.bitcast(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def loop_over_depth(
    builder: ir.IRBuilder,
    depth: ir.Value,
    stride: int,
    initial: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """values = `initial`, then values = body(k, values) for k = 0, stride, ... below `depth` > 0.

    Returns the last values; the builder then stands behind the loop.
    """
    before = builder.basic_block
    loop, after = (builder.append_basic_block(name) for name in ("depth", "after"))
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    values = [builder.phi(value.type) for value in initial]
    updated = body(k, values)
    following = builder.add(k, I64(stride))
    end = builder.basic_block  # of the body, which may contain a loop
    for phi, first, last in zip(
        [k, *values], [I64(0), *initial], [following, *updated], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(last, end)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
    builder.position_at_end(after)
    return updated


@intrinsic
def address_of(typing_context, array, offset):
    """Pointer to the element `offset` places behind the first of a C-contiguous array.

    It does not keep the array alive: a caller uses the array later on, or got it as an argument.
    """

    def generate(context, builder, signature, arguments) -> ir.Value:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.gep(data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.int64), generate


@intrinsic
def advance(typing_context, pointer, offset):
    """The pointer, `offset` elements further."""

    def generate(context, builder, signature, arguments) -> ir.Value:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate
