"""Compiles the Triton kernels for a Hopper GPU, which need not be there; prints the names."""

import re
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from graft.kernels import (
    chunk_attention_gluon,
    copy_triton,
    decoder_triton,
    experts_triton,
    fragment_product_gluon,
    hook_triton,
    level_attention_triton,
    packed_product_triton,
    product_triton,
    recurrent_triton,
)
from graft.kernels import split_attention_triton as split

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    "*bf16": ("query", "keys", "values", "result", "x", "weight", "bias", "y", "hidden", "normed",
              "gate_up", "gated", "qkv", "query_norm", "key_norm"),
    "*fp32": ("mixed_parts", "sum_parts", "sinks", "change", "cosine", "sine"),
    "*i32": ("extents", "tasks", "table", "paths", "parts"),
    "*i64": ("positions", "rows", "bits"),
    "fp32": ("scale", "softcap", "epsilon"),
}  # fmt: skip
TYPES = {name: kind for kind, names in POINTERS.items() for name in names}
HEADS = {"GROUP": 3, "HEADS": 9, "SIZE": 80, "PADDED": 128, "PRECISION": "tf32"}


def compile_kernel(
    kernel: Any,
    *,
    types: dict[str, str] | None = None,
    aligned: bool = False,
    warps: int = 4,
    **constants: Any,
) -> Any:
    """Arguments that are neither constants nor known by name are integers. If `aligned`, all of
    them are multiples of 16, as Triton finds at a launch."""
    known = {**TYPES, **(types or {})}
    signature = {
        name: "constexpr" if name in constants else known.get(name, "i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    options = {"num_warps": warps, "launch_pdl": bool(constants.get("PDL"))}
    make = GluonASTSource if kernel.is_gluon() else ASTSource
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if aligned and name not in constants
    }
    source = make(kernel, signature, constexprs=places, attrs=attributes)
    compiled = triton.compile(source, target=TARGET, options=options)
    sys.stdout.write(f"{kernel.__name__}\n")
    return compiled


def attention() -> None:
    """With and without windows, caps and sinks."""
    for kernel, tile in ((split._attend, 16), (split._attend, 64), (split._finish, 16)):
        for special in (False, True):
            constants = {
                "TILE": tile, "LONGEST": 16, "HAS_WINDOW": special, "HAS_SOFTCAP": special,
                "HAS_SINKS": special, "PDL": True, **HEADS, **({} if special else {"sinks": None}),
            }  # fmt: skip
            folded = {"IS_FOLDED": not special} if kernel is split._finish else {}
            compile_kernel(kernel, types={"parts": "i32"}, **constants, **folded)
    compile_kernel(split._fold, types={"parts": "i32"}, HEADS=9, SIZE=80, PADDED=128, PDL=True)
    level = level_attention_triton
    compile_kernel(level._attend, TILE=16, KEYS=64, COLUMNS=level.COLUMNS, **HEADS)
    compile_kernel(level._merge, HEADS=9, SIZE=80, PADDED=128, PARTS=16)


def chunk_attention() -> None:
    """Of prompts, in Gluon."""
    kernel, size = chunk_attention_gluon._attend_chunks, chunk_attention_gluon.SIZE
    block = [chunk_attention_gluon.BLOCK, size]
    blocks = f"tensordesc<bf16{block},{gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)!r}>"
    compile_kernel(
        kernel, types={"keys": blocks, "values": blocks}, GROUP=3, HEADS=9, SIZE=size, LONGEST=8
    )


def products() -> None:
    """Of few and many rows, with every kind of result."""
    few = {"ROWS": 16, "OUTPUTS": 16, "DEPTH": 256, "SWAPPED": False, "PREFETCHED": True}
    many = {"ROWS": 64, "OUTPUTS": 128, "DEPTH": 64, "SWAPPED": True, "PREFETCHED": False}
    for shape in (few, many):
        for gated, partial in ((False, False), (True, False), (False, True)):
            compile_kernel(
                product_triton._product,
                types={"rows": "i32", "y": "*fp32" if partial else "*bf16"},
                STAGES=3, EVEN=not partial, BIASED=not gated and not partial, GATED=gated,
                PARTIAL=partial, ELEMENTS=64, PDL=True, **shape,
            )  # fmt: skip


def packed_products() -> None:
    """With FP8 and 4 bits, gated and cut."""
    sizes = {"OUTPUTS": 64, "DEPTH": 128, "GROUP": 128, "MAGIC": 0x4300, "ONES": 128, "PDL": True}
    for bits, after in ((8, True), (8, False), (4, False)):
        four = {"FOUR_BITS": bits == 4, "AFTER": after}  # noqa: PLR2004
        types = {"codes": "*fp8e4nv", "scales": "*fp32", "rows": "i32"}
        if bits == 4:  # noqa: PLR2004
            types |= {"codes": "*u8", "scales": "*bf16", "zeros": "*bf16"}
        else:
            four["zeros"] = None
        for swapped, gated in ((True, False), (False, True)):
            compile_kernel(
                packed_product_triton._packed_product, types=types, ROWS=16, STAGES=4,
                SWAPPED=swapped, BIASED=not gated, GATED=gated, PARTIAL=False, COMPILED=True,
                **sizes, **four,
            )  # fmt: skip
        compile_kernel(
            packed_product_triton._widen, types={**types, "dense": "*bf16"}, **sizes, **four
        )


def fragment_products() -> None:
    """With FP8 and 4 bits, gated and cut, for one row and for many."""
    gluon = fragment_product_gluon
    kinds = {
        (False, True): gluon._widen_fp8,
        (False, False): gluon._widen_fp8_blocks,
        (True, False): gluon._widen_four_bits,
    }
    types = {"codes": "*u8", "scales": "*i32", "rows": "i32"}
    for (four_bits, after), widen in kinds.items():
        for rows, gated, partial, dtype in (
            (8, False, True, torch.bfloat16),
            (64, True, False, torch.float16),
        ):
            kind = {"x": "*bf16" if dtype == torch.bfloat16 else "*fp16"}
            kind |= {"bias": kind["x"], "y": "*fp32" if partial else kind["x"]}
            plan = gluon.fragment_plans(rows, 4096)[0]
            compiled = compile_kernel(
                gluon._fragment_product, types=types | kind, aligned=True, warps=plan.warps,
                ROWS=rows, TILES=plan.outputs // gluon.OUTPUTS, STAGES=plan.stages,
                BLOCKS=plan.depth // gluon.BLOCK, GATED=gated,
                BIASED=not partial, PARTIAL=partial, FOUR_BITS=four_bits, AFTER=after, GROUP=128,
                WIDEN=widen(dtype), PDL=True,
            )  # fmt: skip
            copies = re.findall(r"cp\.async\.\w+\.shared\.global[^;]*", compiled.asm["ptx"])
            past_l1 = [each for each in copies if ".cg." in each and "0x10," in each]
            assert copies == past_l1, "weights and rows are copied 16 bytes at a time"
            assert copies
        compile_kernel(
            packed_product_triton._widen_fragments,
            types={
                "codes": "*u8" if four_bits else "*fp8e4nv",
                "scales": "*i32" if four_bits else "*fp32",
                "dense": "*bf16",
            },
            PARTS=4, GROUP=128, FOUR_BITS=four_bits, AFTER=after, MAGIC=0x4300, PDL=True,
        )  # fmt: skip
    compile_kernel(
        packed_product_triton._scale_sums,
        types={"sums": "*fp32", "factors": "*fp32", "bias": "*bf16", "y": "*bf16"},
        BLOCK=2048, BIASED=True, COMPILED=True, PDL=True,
    )  # fmt: skip


def between_products() -> None:
    """Norms, rotations and gates."""
    compile_kernel(decoder_triton._add_norm, types={"rows": "i32"}, PARTS=2, BLOCK=1024, PDL=True)
    for gelu in (False, True):
        compile_kernel(decoder_triton._gate, GELU=gelu, BLOCK=1024, PDL=True)
    compile_kernel(
        decoder_triton._rotate_and_store,
        HEADS=9, KV_HEADS=3, HALF=32, NORMED=True, BLOCK=32, NODES=16, PDL=True,
    )  # fmt: skip


def around_modules() -> None:
    """Rotations, stores and experts for transformers' modules."""
    types = {"key": "*bf16", "value": "*bf16", "query_out": "*bf16", "key_out": "*bf16"}
    types |= {"query_gain": "*fp32", "key_gain": "*fp32"}
    types |= {"query_epsilon": "fp32", "key_epsilon": "fp32"}
    sizes = {"SIZE": 80, "BLOCK": 128, "PDL": True}
    heads = {"HEADS": 9, "KV_HEADS": 3, "VALUE_SIZE": 64, "NODES": 16}
    plain = {"query_gain": None, "key_gain": None}
    store_alone = dict.fromkeys(("cosine", "sine", "query_out", "key_out")) | {"HEADS": 0}
    uncached = dict.fromkeys(("value", "rows", "keys", "values"))
    for more in ({}, uncached, plain, {**plain, **store_alone, "HALF": 0}):
        compile_kernel(
            hook_triton._rotate_and_store, types=types, **{**sizes, **heads, "HALF": 32, **more}
        )
    gains = {"before": "*bf16", "after": "*fp32", "before_epsilon": "fp32", "after_epsilon": "fp32"}
    types = gains | dict.fromkeys(("first", "second", "total", "normed"), "*bf16")
    only_norm = dict.fromkeys(("before", "first", "second", "total", "factor"))
    for more in ({"second": None}, only_norm):
        compile_kernel(
            hook_triton._add_and_norm, types=types | {"factor": "fp32"}, HEADS=3, **sizes, **more
        )
    compile_kernel(
        experts_triton._expert_product,
        types={"experts": "*i64", "weights": "*bf16", "product": "*bf16", "by_expert": "i64"},
        CHOSEN=8, EACH=8, INPUTS=2000, PAIRS=128, TILE=16, WIDTH=64, DEPTH=128, PRECISION="tf32",
        PDL=True,
    )  # fmt: skip
    routing = {"logits": "*bf16", "weights": "*fp32", "numbers": "*i64", "pairs": "*bf16"}
    compile_kernel(
        experts_triton._choose_experts, types=routing, CHOSEN=6, AMONG_CHOSEN=False, BLOCK=128,
        SLOTS=8, PDL=True,
    )  # fmt: skip
    compile_kernel(experts_triton._weighted_sum, types=routing, CHOSEN=6, BLOCK=512, PDL=True)


def recurrent_layers() -> None:
    """Of every kind: of a convolution with and without its bias, of delta rules by head and by
    channel, and of Mamba 2."""
    tables = {"links": "*i32", "walks": "*i32", "sequences": "*i64", "scale": "fp32"}
    limits = {"lowest": "fp32", "highest": "fp32"}
    kinds = dict.fromkeys(("value", "key", "inputs", "b", "c", "steps", "strength"), "*bf16")
    kinds |= dict.fromkeys(("decay", "rates", "skip", "output"), "*fp32")
    types = {**tables, **limits, **kinds}
    for special in (False, True):
        compile_kernel(
            recurrent_triton._convolve, types={**types, "states": "*bf16", "output": "*bf16"},
            WIDTH=4, BIASED=special, SILU=not special, BLOCK=512, PDL=True,
        )  # fmt: skip
        compile_kernel(
            recurrent_triton._delta_rule, types={**types, "states": "*fp32"}, warps=1, HEADS=32,
            SIZE=128, WIDTH=128, ROWS=128, COLUMNS=8, NORMED=True, BY_CHANNEL=special, PDL=True,
        )  # fmt: skip
    compile_kernel(
        recurrent_triton._selective_update, types={**types, "states": "*fp32"}, warps=1, HEADS=48,
        EACH=48, SIZE=64, WIDTH=128, ROWS=8, COLUMNS=128, PDL=True,
    )  # fmt: skip


def copies() -> None:
    """Drafts found on the device."""
    integers = ("text", "lengths", "counts", "draft", "matched", "new", "sampled", "limits")
    types = {name: "*i32" for name in (*integers, "valid", "last", "rates", "guess")}
    types |= {"best": "*i64", "newest": "*i64", "places": "*i64", "seen": "*fp32"}
    names = "_append_sampled", "_search", "_draft_copies"
    append, search, draft = (getattr(copy_triton, name).kernel for name in names)
    types |= {"discarded": "*i1"}
    compile_kernel(append, types=types, warps=1, limits=None, LENGTHS=32, WIDTH=16)
    others = dict.fromkeys(("discarded", "valid", "counts", "last"))
    for every in ({}, {"limits": None}):
        compile_kernel(append, types=types, warps=1, **others, **every, LENGTHS=32, WIDTH=16)
    compile_kernel(search, types=types, LONGEST=16, BLOCK=1024)
    for newest in (0, 1):
        draws = {**types, "draft": "*i64"} if newest else types
        compile_kernel(draft, types=draws, LENGTHS=32, UNIT=1024, WIDTH=16, NEWEST=newest)


if __name__ == "__main__":
    copies()
    around_modules()
    recurrent_layers()
    attention()
    chunk_attention()
    products()
    packed_products()
    fragment_products()
    between_products()
