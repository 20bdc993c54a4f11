"""Quantised matrices in fragment order: every thread of a matrix instruction holds the weights that
the instruction expects of it. The kernel itself runs on Hopper alone: `pytest -m gpu`."""

import re

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton.experimental.gluon", reason="Gluon is not installed")

from tiny_packed import packed, reference

from graft.kernels import fragment_matrix
from graft.kernels import fragment_product_gluon as gluon
from graft.kernels.fragment_matrix import FragmentMatrix, arrange, fits, in_fragments, restore
from graft.kernels.packed_matrix import PackedMatrix, packed_segments
from graft.kernels.packed_product_triton import widen_fragments
from graft.kernels.product_triton import segment_bounds

KINDS = ("fp8", "fp8 blocks", "4 bits", "4 bits, one group")
DTYPES = (torch.float16, torch.bfloat16)
all_kinds = pytest.mark.parametrize("kind", KINDS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def place_of(lane: int, register: int, half: int) -> tuple[int, int]:
    """Row and column of a 16-bit half of a register in the first operand of m16n8k16, by the PTX
    manual."""
    row = lane // 4 + (8 if register % 2 else 0)
    return row, 2 * (lane % 4) + half + (8 if register >= 2 else 0)


def word_of(codes: Tensor, tile: int, part: int, lane: int, index: int) -> Tensor:
    """The four bytes that make registers 2 (index % 2) and the next of k16 step index // 2."""
    run, within = divmod(4 * index, 16)
    at = 512 * run + 16 * lane + within
    return codes[tile, part, at : at + 4]


class Registers(dict):
    """Runs the PTX that widens codes: 32-bit registers, one value for each element of a tensor."""

    def __init__(self, dtype: torch.dtype, **held: Tensor) -> None:
        super().__init__(held)
        self.dtype = dtype

    def value(self, name: str) -> Tensor:
        if re.fullmatch(r"0x[0-9a-f]+|\d+", name):
            return torch.tensor(int(name, 0))
        return self[name]

    def halves(self, name: str) -> Tensor:
        words = self.value(name).to(torch.int64)
        both = torch.stack([words & 0xFFFF, words >> 16], -1).to(torch.int32)
        return both.to(torch.uint16).view(self.dtype)

    def joined(self, halves: Tensor) -> Tensor:
        low, high = halves.to(self.dtype).view(torch.uint16).to(torch.int64).unbind(-1)
        return high << 16 | low

    def floats(self, name: str) -> Tensor:
        return self.value(name).to(torch.int32).view(torch.float32)

    def run(self, program: str) -> "Registers":
        for line in re.findall(r"(?:^|[\n{;])\s*([a-z][\w.]+ [^;{]+|mov[^;]+);", program):
            self.step(*line.strip().split(None, 1))
        return self

    def step(self, name: str, operands: str) -> None:
        target, *given = (each.strip() for each in operands.split(","))
        if name == "mov.b32" and target.startswith("{"):
            self["l"], self["h"] = self.halves(given[-1]).unbind(-1)
        elif name == "cvt.f32.f16":
            self[target] = self.bits(self[given[0]].float())
        elif name.startswith("cvt.rn"):
            high, low = map(self.floats, given)
            self[target] = self.joined(torch.stack([low, high], -1))
        elif name == "mul.rn.f32":
            self[target] = self.bits(self.floats(given[0]) * self.floats(given[1]))
        elif name.startswith("mul.rn"):
            self[target] = self.joined(self.halves(given[0]) * self.halves(given[1]))
        elif name.startswith("sub.rn"):
            self[target] = self.joined(self.halves(given[0]) - self.halves(given[1]))
        else:
            self[target] = self.whole(name, given)

    def whole(self, name: str, given: list[str]) -> Tensor:
        values = [self.value(each) for each in given[:3]]
        if name == "lop3.b32":
            assert given[3] == "0xea"
        return {
            "mov.b32": lambda a: a,
            "shl.b32": lambda a, b: a << b & 0xFFFFFFFF,
            "shr.b32": lambda a, b: a >> b,
            "and.b32": lambda a, b: a & b,
            "lop3.b32": lambda a, b, c: a & b | c,
        }[name](*values)

    @staticmethod
    def bits(values: Tensor) -> Tensor:
        return values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def as_word(four: Tensor) -> Tensor:
    return four.contiguous().view(torch.int32).to(torch.int64)[..., 0] & 0xFFFFFFFF


def widened(matrix: FragmentMatrix) -> Tensor:
    """The dense form, made as the kernel makes it: by the registers of every thread."""
    outputs, depth = matrix.shape
    dense = torch.zeros(outputs, depth, dtype=matrix.dtype)
    program = gluon.options_of(matrix)["WIDEN"]
    for tile in range(outputs // 16):
        for part in range(matrix.codes.shape[1]):
            for lane in range(32):
                for index in range(8):
                    fill(dense, matrix, program, (tile, part, lane, index))
    return dense


def fill(
    dense: Tensor, matrix: FragmentMatrix, program: str, at: tuple[int, int, int, int]
) -> None:
    tile, part, lane, index = at
    code = as_word(word_of(matrix.codes, *at))
    start = part * (128 if matrix.four_bits else 64)
    words = matrix.scales.view(torch.int32)[start // matrix.group].to(torch.int64) & 0xFFFFFFFF
    own = [words[16 * tile + place_of(lane, register, 0)[0]] for register in (0, 1)]
    if matrix.four_bits:
        held = {"$4": code}
        for element, word in enumerate((own[0], own[0], own[1], own[1])):
            scale, zero = word & 0xFFFF, word >> 16
            held[f"${5 + element}"] = scale << 16 | scale
            held[f"${9 + element}"] = zero << 16 | zero
    else:
        held = {"$2": code, "$3": own[0], "$4": own[0], "$5": own[1], "$6": own[1]}
    done = Registers(matrix.dtype, **held).run(program)
    for register in range(2):
        for name, more in ((f"${register}", 0), *([(f"${register + 2}", 64)] * matrix.four_bits)):
            halves = done.halves(name)
            for half in range(2):
                row, column = place_of(lane, 2 * (index % 2) + register, half)
                column += start + more + 16 * (index // 2)
                dense[16 * tile + row, column] = halves[half]


@dtypes
@all_kinds
def test_threads_hold_the_dense_weights_where_the_matrix_instruction_wants_them(kind, dtype):
    matrix = packed(kind, 16, 128, dtype)
    assert fits(matrix)
    assert torch.equal(widened(in_fragments(to_cpu(matrix))), reference(matrix).cpu())


@all_kinds
@pytest.mark.parametrize("depth", [128, 384, 512])
def test_fragments_are_widened_by_the_kernel_as_by_definition(kind, depth):
    matrix = packed(kind, 48, depth, torch.float16)  # the interpreter casts no bits to bf16
    assert torch.equal(widen_fragments(in_fragments(matrix)), reference(matrix))


def to_cpu(matrix: PackedMatrix) -> PackedMatrix:
    parts = (x if x is None else x.cpu() for x in (matrix.codes, matrix.scales, matrix.zeros))
    return PackedMatrix(*parts, matrix.dtype)


@dtypes
def test_every_fp8_code_is_widened_exactly(dtype):
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    words = torch.stack([codes, codes.flip(0), codes, codes.flip(0)], -1)  # bytes 0 and 2, 1 and 3
    done = Registers(dtype, **{"$2": as_word(words)}).run(gluon._widen_fp8(dtype))
    exact = codes.view(torch.float8_e4m3fn).to(dtype)
    assert torch.equal(done.halves("$0"), torch.stack([exact, exact], -1))
    assert torch.equal(done.halves("$1"), torch.stack([exact.flip(0), exact.flip(0)], -1))


def test_arranged_bytes_come_back():
    codes = torch.randint(256, (48, 192), dtype=torch.uint8)
    stored = arrange(codes)
    assert stored.shape == (3, 3, 1024)
    assert torch.equal(restore(stored), codes)


@pytest.mark.parametrize("dtype", DTYPES if torch.cuda.is_available() else DTYPES[:1], ids=str)
@all_kinds
def test_dense_form_is_the_packed_matrix_s(kind, dtype):
    matrix = packed(kind, 48, 384, dtype)
    fragments = in_fragments(matrix)
    assert fragments.shape == matrix.shape
    assert fragments.group == matrix.group
    assert torch.equal(fragments.dense(), reference(matrix))
    if matrix.factors is not None:
        assert torch.equal(fragments.factors, matrix.factors)


@pytest.mark.parametrize(
    ("kind", "outputs", "depth"),
    [("4 bits, groups of 32", 32, 256), ("fp8", 40, 256), ("fp8", 32, 192), ("4 bits", 24, 256)],
)
def test_matrices_without_whole_tiles_stay_packed(kind, outputs, depth):
    matrix = packed(kind, outputs, depth, torch.bfloat16)
    assert not fits(matrix)
    assert fragment_matrix.for_device(matrix) is matrix


def test_codes_that_are_not_numbers_stay_packed():
    matrix = packed("fp8", 32, 256, torch.bfloat16)
    matrix.codes.view(torch.uint8)[3, 7] = 0xFF
    assert not fits(matrix)


@pytest.mark.parametrize(
    ("outputs", "depth", "fp8", "four_bits"),
    [
        (4096, 4096, 2, 4),
        (4096, 14336, 2, 4),
        (28672, 4096, 1, 1),
        (1536, 8960, 4, 4),
        (1536, 1536, 1, 1),
        (576, 1536, 1, 1),
    ],
)
def test_matrices_with_few_outputs_are_cut(outputs, depth, fp8, four_bits):
    assert packed_segments(outputs, depth, four_bits=False) == fp8
    assert packed_segments(outputs, depth, four_bits=True) == four_bits
    for segments in (fp8, four_bits):
        assert len(segment_bounds(depth, segments)) == segments
