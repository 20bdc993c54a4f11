"""The one loop all our LLVM kernels have: along the depth, in equal strides, sums in registers."""

from collections.abc import Callable

from llvmlite import ir

_I64 = ir.IntType(64)


def along_depth(
    builder: ir.IRBuilder,
    depth: ir.Value,
    stride: int,
    begun: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """carried = `begun`, then body(k, carried) for k = 0, stride, ... below `depth` (above 0).

    What is carried at the end; the builder stands behind the loop.
    """
    before = builder.basic_block
    loop, after = (builder.append_basic_block(name) for name in ("depth", "after"))
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_I64)
    carried = [builder.phi(value.type) for value in begun]
    ended = body(k, carried)
    following = builder.add(k, _I64(stride))
    for place, first, last in zip(
        [k, *carried], [_I64(0), *begun], [following, *ended], strict=True
    ):
        place.add_incoming(first, before)
        place.add_incoming(last, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
    builder.position_at_end(after)
    return ended
