"""Norms, rotations and stores around transformers' modules against plain torch; see
test_decoder_triton.py."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.hook_triton import (
    Angles,
    CacheRows,
    Heads,
    Norm,
    Sum,
    add_and_norm,
    rotate_and_store,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.gain, norm.epsilon) if norm.epsilon else x


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [1, H, N, D] of which the first components turn by angles [N, R / 2]."""
    half = angles.shape[1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kinds", ["b", "a", "1", "b1a", "bf12a", "f1a", "12"])
def test_sums_and_norms_share_a_launch(kinds, dtype):
    """Every operation rounds as it would alone."""
    torch.manual_seed(0)
    x, one, two = torch.randn(3, 5, 1, 40, device=DEVICE).to(dtype)
    before, after = (Norm(torch.randn(40, device=DEVICE), 1e-5) for _ in range(2))
    expected = normed(x.float(), before).to(dtype) if "b" in kinds else x
    expected = expected * 0.3 if "f" in kinds else expected
    added = tuple(each for name, each in (("1", one), ("2", two)) if name in kinds)
    expected = sum(added, expected)
    way = Sum(
        before if "b" in kinds else Norm(), 0.3 if "f" in kinds else None, added,
        after if "a" in kinds else Norm(),
    )  # fmt: skip
    total, norm = torch.empty_like(x), torch.empty_like(x)
    add_and_norm(x, way, total, norm if "a" in kinds else None)
    rounding = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(total, expected, **rounding)
    if "a" in kinds:
        expected = normed(total.float(), after).to(dtype)
        torch.testing.assert_close(norm, expected, **rounding)
        alone = torch.empty_like(x)
        add_and_norm(total, Sum(after=after), None, alone)
        assert torch.equal(alone, norm)


@pytest.mark.parametrize("heads", [1, 3])
def test_heads_are_normed_where_they_lie(heads):
    """In the middle of longer rows."""
    torch.manual_seed(0)
    rows = torch.randn(5, 200, device=DEVICE)
    x, norm = rows[:, 8 : 8 + 40 * heads].view(5, heads, 40), Norm(rows[0, :40], 1e-5)
    found = torch.empty(5, heads, 40, device=DEVICE)
    add_and_norm(x, Sum(before=norm), found, None)
    torch.testing.assert_close(found, normed(x, norm))


@pytest.mark.parametrize(("size", "turned"), [(64, 64), (40, 40), (64, 16)])
@pytest.mark.parametrize("nodes", [1, 5, 17])
@pytest.mark.parametrize("has_norm", [False, True])
def test_queries_and_keys_turn_by_their_angles(size, turned, nodes, has_norm):
    torch.manual_seed(0)
    # As modules make them: nodes first, then transposed.
    heads = [torch.randn(1, nodes, n, size, device=DEVICE).transpose(1, 2) for n in (6, 2)]
    gains = torch.randn(2, size, device=DEVICE)
    norms = [Norm(each, 1e-5) if has_norm else Norm() for each in gains]
    expected = [normed(x, norm) for x, norm in zip(heads, norms, strict=True)]
    angles = torch.randn(nodes, turned // 2, device=DEVICE)
    tables = [torch.cat([each, each], -1)[None] for each in (angles.cos(), angles.sin())]
    halves = [table[..., : turned // 2] for table in tables]
    by_column = [table.transpose(1, 2).contiguous().transpose(1, 2) for table in halves]
    for cosine, sine in (tables, halves, by_column):
        found = [torch.empty_like(each) for each in heads]
        rotate_and_store(*map(Heads, heads, norms, found), Angles(cosine, sine, turned), None)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, rotated(theirs, angles))


@pytest.mark.parametrize("turned", [0, 24])
def test_rows_are_stored_but_those_of_padding_are_not(turned):
    torch.manual_seed(0)
    key, value = torch.randn(1, 2, 5, 24, device=DEVICE), torch.randn(1, 2, 5, 16, device=DEVICE)
    keys, values = torch.zeros(2, 3, 9, 24, device=DEVICE)[:, :2]
    rows = torch.tensor([4, 0, -1, 8, -1], device=DEVICE)
    angles = torch.randn(5, turned // 2, device=DEVICE)
    tables = Angles(angles.cos()[None], angles.sin()[None], turned) if turned else None
    rotate_and_store(None, Heads(key), tables, CacheRows(value, rows, keys, values))
    expected = rotated(key, angles)
    for node, row in ((0, 4), (1, 0), (3, 8)):
        torch.testing.assert_close(keys[:, row], expected[0, :, node])
        assert torch.equal(values[:, row, :16], value[0, :, node])
    assert not values[..., 16:].any()
    assert not keys[:, [1, 2, 3, 5, 6, 7]].any()
