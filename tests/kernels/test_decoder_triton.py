"""The Triton kernels of a decoder layer against plain torch in float64.

Where there is no GPU they run through Triton's interpreter (see conftest.py), which rounds bfloat16
towards zero, so that is left to GPUs.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.decoder_triton import (
    ARGMAX_BLOCK,
    MAX_MOVES,
    add_norm,
    argmax_rows,
    gated_gelu,
    move_rows,
    rotate_and_store,
    swiglu,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EPSILON = 1e-5


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def randoms(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to float64 within one rounding to the dtype and a few of float32."""
    rounding = torch.finfo(found.dtype).eps
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0.51 * rounding, atol=1e-6 * scale)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.double(), (x.shape[-1],), weight.double(), EPSILON)


@dtypes
@pytest.mark.parametrize("size", [48, 64, 576])
def test_norm_alone_does_not_change_hidden_states(size, dtype):
    hidden, weight = randoms(3, size, dtype=dtype) * 5, randoms(size, dtype=dtype)
    before = hidden.clone()
    assert_near(add_norm(hidden, None, weight, EPSILON), normed(hidden, weight))
    assert torch.equal(hidden, before)


@dtypes
def test_sum_is_rounded_before_the_norm_as_in_torch(dtype):
    hidden, change, weight = (randoms(3, 96, dtype=dtype) for _ in range(3))
    expected = hidden + change
    result = add_norm(hidden, change, weight[0], EPSILON)
    assert torch.equal(hidden, expected)
    assert_near(result, normed(expected, weight[0]))


def test_norm_of_zeros_is_zero():
    hidden = torch.zeros(1, 64, device=DEVICE)
    assert not add_norm(hidden, None, torch.ones(64, device=DEVICE), EPSILON).any()


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """[N, heads, D] as complex numbers turned by angles [N, D / 2]."""
    first, second = x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.complex(cosine, sine)[:, None]
    return torch.cat([turned.real, turned.imag], -1)


@dtypes
@pytest.mark.parametrize("head_normed", [False, True], ids=["plain", "head norms"])
@pytest.mark.parametrize("size", [16, 64, 80, 96])
def test_heads_are_normed_rotated_and_stored(size, head_normed, dtype):
    heads, kv_heads, nodes = 4, 2, 3
    qkv = randoms(nodes, (heads + 2 * kv_heads) * size, dtype=dtype)
    cosine, sine = randoms(50, size // 2), randoms(50, size // 2)
    positions = torch.tensor([49, 0, 7], device=DEVICE)
    rows = torch.tensor([5, -1, 2], dtype=torch.int32, device=DEVICE)
    kv = randoms(2, 3, kv_heads, 6, size, dtype=dtype)
    norms = (randoms(size, dtype=dtype), randoms(size, dtype=dtype)) if head_normed else None
    before, (keys, values) = kv.clone(), kv[:, 1]
    query = rotate_and_store(qkv, positions, cosine, sine, rows, keys, values, norms, EPSILON)

    parts = qkv.double().view(nodes, -1, size).split([heads, kv_heads, kv_heads], 1)
    angles = cosine.double()[positions], sine.double()[positions]
    wanted = [normed(part, norms[i]) if norms else part for i, part in enumerate(parts[:2])]
    expected_query, expected_keys = (rotated(part, *angles) for part in wanted)
    assert_near(query, expected_query)
    for node, row in ((0, 5), (2, 2)):
        assert_near(keys[:, row], expected_keys[node])
        assert torch.equal(values[:, row].double(), parts[2][node])
    untouched = torch.ones(kv.shape[:-1], dtype=torch.bool, device=DEVICE)
    untouched[:, 1, :, [2, 5]] = False
    assert torch.equal(kv[untouched], before[untouched])


@dtypes
@pytest.mark.parametrize("size", [7, 48, 1500])
def test_swiglu(size, dtype):
    gate_up = randoms(2, 2 * size, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, -1)
    assert_near(swiglu(gate_up), F.silu(gate) * up)


MOVES = {
    "none": [],
    "apart": [(3, 11), (5, 12)],
    "onto a row that is read": [(4, 3), (6, 4), (9, 5), (5, 6)],
    "swap": [(1, 2), (2, 1)],
    "in place": [(2, 2)],
}


@dtypes
@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("capacity", [5, MAX_MOVES])
def test_rows_are_read_before_any_is_written(moves, capacity, dtype):
    kv = randoms(2, 2, 3, 13, 80, dtype=dtype)
    expected = kv.clone()
    for source, target in moves:
        expected[:, :, :, target] = kv[:, :, :, source]
    listed = torch.full((capacity, 2), 10**6, dtype=torch.int32)  # what is unused may be anything
    listed[: len(moves)] = torch.tensor(moves, dtype=torch.int32).reshape(-1, 2)
    count = torch.tensor([len(moves)], dtype=torch.int32)
    move_rows(kv, listed.to(DEVICE), count.to(DEVICE))
    assert torch.equal(kv, expected)


SIZES = [1, 100, ARGMAX_BLOCK, 2 * ARGMAX_BLOCK + 77]


@dtypes
@pytest.mark.parametrize("size", SIZES)
def test_argmax_equals_torch(size, dtype):
    logits = randoms(5, size, dtype=dtype)
    logits[1] -= 100  # all negative
    assert torch.equal(argmax_rows(logits), logits.argmax(-1))


def test_argmax_of_ties_is_the_first():
    logits = torch.zeros(6, 3 * ARGMAX_BLOCK)
    logits[1] = float("-inf")
    logits[2, [10, 20, ARGMAX_BLOCK + 10]] = 5.0
    logits[3, :9] = -0.0
    logits[4, [2 * ARGMAX_BLOCK, 2 * ARGMAX_BLOCK + 1]] = float("inf")
    logits[5, 7], logits[5, 3] = float("nan"), float("inf")
    assert argmax_rows(logits.to(DEVICE)).tolist() == [0, 0, 10, 0, 2 * ARGMAX_BLOCK, 7]


def test_gates_by_gelu():
    torch.manual_seed(0)
    x = 3 * torch.randn(3, 96, device=DEVICE)
    expected = F.gelu(x[:, :48], approximate="tanh") * x[:, 48:]
    torch.testing.assert_close(gated_gelu(x), expected, rtol=1e-5, atol=1e-5)
