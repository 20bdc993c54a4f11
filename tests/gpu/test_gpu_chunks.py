"""Chunks of prompts by the kernel for Hopper have the bits of the other one; `pytest -m gpu`."""

import numpy as np
import pytest
import torch

from graft.kernels import split_attention_triton as split
from graft.kernels.tree_layout import TreeLayout

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")


def chunk(length: int, nodes: int, start: int) -> TreeLayout:
    return TreeLayout(
        first_node=np.array([0, nodes]),
        parents=np.arange(-1, nodes - 1),
        positions=np.arange(length, length + nodes),
        rows=np.arange(start + length, start + length + nodes),
        segments=(((start, length),),),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(32, 8, 128), (12, 2, 128), (9, 3, 64), (7, 7, 128)]
)
@pytest.mark.parametrize(
    ("length", "nodes"), [(0, 64), (0, 1920), (777, 300), (6144, 2048), (30_000, 130)]
)
def test_same_bits(monkeypatch, length, nodes, heads, kv_heads, size, dtype):  # noqa: PLR0913
    if not split.chunks or not split.chunks.runs_on(DEVICE, size, dtype):
        pytest.skip("for Hopper")
    torch.manual_seed(length + nodes)
    layout = chunk(length, nodes, start=100)
    cache = torch.full((2, kv_heads, length + nodes + 164, size), torch.nan, device=DEVICE).to(
        dtype
    )
    cache[:, :, 100 : 100 + length + nodes].normal_()
    query = torch.randn(nodes, heads, size, device=DEVICE).to(dtype)
    plan = split.place(layout, heads // kv_heads, cache[0])
    found = split.attend(query, *cache, plan, scale=0.09)
    monkeypatch.setattr(split, "chunks", None)
    assert torch.isfinite(found).all()
    assert torch.equal(found, split.attend(query, *cache, plan, scale=0.09))
