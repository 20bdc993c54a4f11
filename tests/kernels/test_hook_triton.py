"""Rotations and stores around transformers' modules against plain torch; see
test_decoder_triton.py."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from graft.kernels.hook_triton import norm_heads, rotate_both, store_rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [1, H, N, D] of which the first components turn by angles [N, R / 2]."""
    half = angles.shape[1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


@pytest.mark.parametrize(("size", "turned"), [(64, 64), (40, 40), (64, 16)])
@pytest.mark.parametrize("nodes", [1, 5, 17])
def test_queries_and_keys_turn_by_their_angles(size, turned, nodes):
    torch.manual_seed(0)
    # As modules make them: nodes first, then transposed.
    query = torch.randn(1, nodes, 6, size, device=DEVICE).transpose(1, 2)
    key = torch.randn(1, nodes, 2, size, device=DEVICE).transpose(1, 2)
    angles = torch.randn(nodes, turned // 2, device=DEVICE)
    tables = [torch.cat([each, each], -1)[None] for each in (angles.cos(), angles.sin())]
    halves = [table[..., : turned // 2] for table in tables]
    by_column = [table.transpose(1, 2).contiguous().transpose(1, 2) for table in halves]
    for cosine, sine in (tables, halves, by_column):
        found = rotate_both(query, key, cosine, sine, turned)
        torch.testing.assert_close(found[0], rotated(query, angles))
        torch.testing.assert_close(found[1], rotated(key, angles))
        assert found[0][0].transpose(0, 1).stride(1) == size  # a node's heads lie together


def test_rows_are_stored_but_those_of_padding_are_not():
    torch.manual_seed(0)
    key, value = torch.randn(1, 2, 5, 24, device=DEVICE), torch.randn(1, 2, 5, 16, device=DEVICE)
    keys, values = torch.zeros(2, 3, 9, 24, device=DEVICE)[:, :2]
    rows = torch.tensor([4, 0, -1, 8, -1], device=DEVICE)
    store_rows(key, value, rows, keys, values)
    for node, row in ((0, 4), (1, 0), (3, 8)):
        assert torch.equal(keys[:, row], key[0, :, node])
        assert torch.equal(values[:, row, :16], value[0, :, node])
    assert not values[..., 16:].any()
    assert not keys[:, [1, 2, 3, 5, 6, 7]].any()


@pytest.mark.parametrize("heads", [1, 3])
def test_heads_are_normed_where_they_lie(heads):
    """In the middle of longer rows."""
    torch.manual_seed(0)
    rows = torch.randn(5, 200, device=DEVICE)
    x, gain = rows[:, 8 : 8 + 40 * heads].view(5, heads, 40), torch.randn(40, device=DEVICE)
    found = norm_heads(x, gain, 1e-5)
    assert found.is_contiguous()
    torch.testing.assert_close(found, F.rms_norm(x, (40,), gain, 1e-5))
