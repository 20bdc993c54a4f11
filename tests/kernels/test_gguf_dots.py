"""Products over GGUF's blocks: the dequantised ones, and the same bits for any number of rows."""

import hashlib
import os
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest
from daily import daily
from gguf_rows import random_rows, values
from llvmlite import ir

from graft.kernels import gguf_blocks, gguf_dots
from graft.kernels.gguf_blocks import FORMATS, GROUP, empty_panels
from graft.kernels.gguf_dots import emit_product, multiply_blocks, part_of, quantise_rows
from graft.kernels.llvm_ir import I64
from graft.kernels.panels import LANES

formats = pytest.mark.parametrize("name", FORMATS)
DEPTH = 768


def inputs(rows: int, depth: int = DEPTH) -> np.ndarray:
    return np.random.default_rng(depth).standard_normal((rows, depth)).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """The inputs that the kernel multiplies, float64: 8 bits, 32 with one scale."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(2, keepdims=True)
    exact = groups * (np.float32(127) / np.maximum(largest, 1e-30))
    codes = np.trunc(exact + np.copysign(np.float32(0.5), exact)).astype(np.float64)
    return (codes * (largest / np.float32(127))).reshape(x.shape)


def pack_blocks(raw: np.ndarray, number: int, order: np.ndarray | None = None) -> np.ndarray:
    """All rows' panels."""
    kind = gguf_blocks.NUMBERED[number]
    panels = empty_panels(len(raw), raw.shape[1] // kind.stored * kind.size, number)
    order = np.arange(len(raw)) if order is None else order
    gguf_blocks.pack_blocks(raw, number, order, panels)
    return panels


def product(x: np.ndarray, *parts: tuple[str, np.ndarray]) -> np.ndarray:
    """x times the weights of these formats and rows, side by side."""
    panels = [pack_blocks(raw, FORMATS[name].number) for name, raw in parts]
    table = [
        part_of(each, FORMATS[name].number, x.shape[1])
        for each, (name, _) in zip(panels, parts, strict=True)
    ]
    count = sum(map(len, panels))
    y = np.full((len(x), count * LANES), np.nan, np.float32)
    multiply_blocks(quantise_rows(x), np.array(table), 0, count, y)
    return y


@formats
@pytest.mark.parametrize("columns", daily([16, 50], 50))
def test_product_is_the_dequantised_one_of_rounded_inputs(name, columns):
    raw, x = random_rows(name, columns, DEPTH), inputs(11)
    weight = values(name, raw).T
    result = product(x, (name, raw))
    near = 4e-7 * (np.abs(rounded(x)) @ np.abs(weight)) + 1e-6
    assert (np.abs(result[:, :columns] - rounded(x) @ weight) <= near).all()
    assert not result[:, columns:].any()  # missing columns are zero
    error = np.abs(result[:, :columns] - x @ weight).max() / np.abs(x @ weight).max()
    assert error < 0.01


@formats
def test_row_has_the_same_bits_in_any_batch(name):
    raw, x = random_rows(name, 33, DEPTH), inputs(20)
    alone = np.concatenate([product(row[None], (name, raw)) for row in x])
    for rows in range(2, 21):
        np.testing.assert_array_equal(product(x[:rows], (name, raw)), alone[:rows])
        np.testing.assert_array_equal(product(x[20 - rows :], (name, raw)), alone[20 - rows :])


def test_parts_of_several_formats_lie_side_by_side():
    parts = [(name, random_rows(name, 32, DEPTH)) for name in ("Q4_K", "Q6_K", "Q8_0")]
    for x in (inputs(3), inputs(17)):
        alone = np.concatenate([product(x, part) for part in parts], 1)
        np.testing.assert_array_equal(product(x, *parts), alone)


def test_many_rows_of_panels_larger_than_the_cache_have_the_same_bits():
    depth = 16384  # one unpacked panel fills more than is unpacked at once
    raw, x = random_rows("Q6_K", 48, depth), inputs(16, depth)
    np.testing.assert_array_equal(product(x, ("Q6_K", raw))[3:4], product(x[3:4], ("Q6_K", raw)))


def test_only_the_requested_columns_are_written():
    raw, x = random_rows("Q5_K", 64, DEPTH), inputs(3)
    panels = pack_blocks(raw, FORMATS["Q5_K"].number)
    table = np.array([part_of(panels, FORMATS["Q5_K"].number, DEPTH)])
    y = np.full((3, 64), 7, np.float32)
    multiply_blocks(quantise_rows(x), table, 1, 3, y)
    assert (y[:, :16] == 7).all()
    assert (y[:, 48:] == 7).all()
    np.testing.assert_array_equal(y[:, 16:48], product(x, ("Q5_K", raw))[:, 16:48])


@formats
def test_rows_are_taken_in_the_given_order(name):
    raw, order = random_rows(name, 32, DEPTH), np.random.default_rng(1).permutation(32)
    number = FORMATS[name].number
    np.testing.assert_array_equal(pack_blocks(raw, number, order), pack_blocks(raw[order], number))


@formats
def test_panels_are_as_small_as_the_file(name):
    raw = random_rows(name, 64, 4096)
    assert pack_blocks(raw, FORMATS[name].number).nbytes <= 1.03 * raw.nbytes


@formats
@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_scale_that_is_not_finite_is_refused(name, broken):
    raw, place = random_rows(name, 16, 256), FORMATS[name].scale_at
    raw[7, place : place + 2] = np.array([broken], np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="not finite"):
        pack_blocks(raw, FORMATS[name].number)


def test_rows_of_zeros_and_outliers():
    raw = random_rows("Q4_0", 16, 64)
    weight = values("Q4_0", raw).T
    for value in (0.0, 1e-40, 1e-20, -3.5, 1e20):
        x = np.full((1, 64), value, np.float32)
        x[0, 5] *= 1000
        near = np.abs(x.astype(np.float64)).max() * np.abs(weight).sum(0).max() / 200 + 1e-30
        assert (np.abs(product(x, ("Q4_0", raw)) - x @ weight) <= near).all()


@formats
def test_arm_kernel_uses_its_dot_product(name, monkeypatch):
    monkeypatch.setattr(gguf_dots, "instruction", lambda: "sdot")
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 5), "product")
    builder = ir.IRBuilder(function.append_basic_block())
    emit_product(builder, FORMATS[name], 2, list(function.args))
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-linux-gnu")
    except RuntimeError:
        pytest.skip("this llvmlite cannot compile for Arm")
    machine = target.create_target_machine(cpu="neoverse-n1", opt=3)
    assembly = machine.emit_assembly(llvm.parse_assembly(str(module)))
    assert assembly.count("sdot") == 2 * 8 * LANES // 4


DIGEST = """
import hashlib, numpy as np, test_gguf_dots as t
results = [t.product(t.inputs(19), (name, t.random_rows(name, 33, 768))) for name in t.SOME]
print(t.gguf_dots.instruction(), hashlib.sha256(np.concatenate(results).tobytes()).hexdigest())
"""
SOME = ("Q4_K", "Q6_K", "Q8_0")


@pytest.mark.slow
def test_other_instructions_give_the_same_bits(tmp_path):
    results = [product(inputs(19), (name, random_rows(name, 33, DEPTH))) for name in SOME]
    expected = hashlib.sha256(np.concatenate(results).tobytes()).hexdigest()
    if sys.platform != "linux" or not llvm.get_host_cpu_features().get("avx2"):
        pytest.skip("compiles for other x86 processors")
    environment = os.environ | {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+sse4.2,+bmi2,+popcnt",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
    }
    ran = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True,
                         check=False, env=environment)  # fmt: skip
    assert ran.stdout.split() == ["widened", expected], ran.stderr
